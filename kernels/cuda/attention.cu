// Attention, forward: a block per tile of queries, with the online softmax of Milakov and Gimelshein (2018).
#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/kernels/cuda/cublas_lt.h"
#include "lockstep/kernels/cuda/cudnn_attention.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

// Blocks on a multiprocessor, at least; one more would put numbers on the stack.
template <class T>
inline constexpr int kTileBlocks = std::is_same_v<T, double> ? 2 : 3;

template <class T>
__global__ void __launch_bounds__(kThreads, kTileBlocks<T>)
    attention_kernel(const AttentionProblem<T> a, T* out, Compute<T>* lse, std::int64_t query_tiles) {
  using P = AttentionProblem<T>;
  using C = Compute<T>;
  constexpr int kTile = P::kTile, kLanes = P::kLanes, kEach = P::kEach;
  const int q_row = static_cast<int>(a.key_size) + 1, v_row = static_cast<int>(a.value_size) + 1,
            wide = q_row > v_row ? q_row : v_row;
  C* q = dynamic_shared<C>();
  C* sums = q + kTile * q_row;
  C* kv = sums + kTile * v_row;  // keys, then values
  C* scores = kv + kTile * wide;

  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t head = blockIdx.x / query_tiles, begin = blockIdx.x % query_tiles * kTile, i = begin + row;
  const std::int64_t b = head / a.heads, h = head % a.heads, g = h / a.group, length = a.length(b);
  load_tile(a.q, b, h, begin, a.queries, a.key_size, q);
  for (int e = lane; e < a.value_size; e += kLanes) sums[row * v_row + e] = 0;

  C top = -P::infinity(), total = 0;
  const std::int64_t limit = a.seen(begin + kTile < a.queries ? begin + kTile - 1 : a.queries - 1, length);
  for (std::int64_t j = 0; j < limit; j += kTile) {
    __syncthreads();  // the last tile has been used
    load_keys(a, a.k, b, g, j, length, a.key_size, kv);
    __syncthreads();
    C s[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int c = lane + n * kLanes;
      s[n] = a.score(b, h, i, j + c, length, dot(q + row * q_row, kv + c * q_row, a.key_size));
      scores[row * (kTile + 1) + c] = s[n];
    }
    __syncthreads();
    load_keys(a, a.v, b, g, j, length, a.value_size, kv);
    // All lanes of a row go through it, in the same order.
    C next = top;
    for (int c = 0; c < kTile; ++c) next = functors::larger(scores[row * (kTile + 1) + c], next);
    const bool empty = next == -P::infinity();
    const C shrink = empty ? C(1) : math::exp(top - next);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      s[n] = empty ? C(0) : math::exp(s[n] - next);
      scores[row * (kTile + 1) + lane + n * kLanes] = s[n];
    }
    __syncthreads();
    total *= shrink;
    for (int c = 0; c < kTile; ++c) total += scores[row * (kTile + 1) + c];
    top = next;
    if (a.drops) {
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int c = lane + n * kLanes;
        scores[row * (kTile + 1) + c] = s[n] * a.factor(b, h, i, j + c);
      }
      __syncthreads();
    }
    for (int e = lane; e < a.value_size; e += kLanes) {
      C sum = sums[row * v_row + e] * shrink;
      for (int c = 0; c < kTile; ++c) sum += scores[row * (kTile + 1) + c] * kv[c * v_row + e];
      sums[row * v_row + e] = sum;
    }
  }
  if (i >= a.queries) return;
  const C share = total == C(0) ? C(0) : C(1) / total;
  T* to = out + (head * a.queries + i) * a.value_size;
  for (int e = lane; e < a.value_size; e += kLanes) to[e] = narrow<T>(sums[row * v_row + e] * share);
  if (lane == 0) lse[head * a.queries + i] = total == C(0) ? P::infinity() : top + math::log(total);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const AttentionArgs& args) {
  const DType dtype = args.q.view.dtype;
  check_floating(AttentionArgs::kName, dtype, stream);
  check_head_size(args, stream);
  const AttentionSizes sizes = attention_sizes(args.q.view, args.k.view, args.v.view, args.block_table.view);
  switch (attention_way(sizes, args.dropout.p > 0, false, has_cublas_lt())) {
    case AttentionWay::products:
      if (!attention_by_cudnn(stream, args)) attention_by_products(stream, args);
      return;
    case AttentionWay::few:
      return attention_of_few(stream, args);
    case AttentionWay::tiles:
      break;
  }
  const trace::WorkScope scope(stream, {.name = "attention by tiles", .kind = trace::Kind::kernel});
  dispatch_floating(dtype, [&]<class T>(Type<T>) {
    using P = AttentionProblem<T>;
    using C = Compute<T>;
    const P problem(args, stream);
    const std::int64_t tiles = problem.tiles(problem.queries), blocks = tiles * problem.batch * problem.heads;
    if (blocks == 0) return;
    const int d = static_cast<int>(problem.key_size) + 1, e = static_cast<int>(problem.value_size) + 1;
    const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                    static_cast<std::size_t>(P::kTile * (d + e + std::max(d, e) + P::kTile + 1)) * sizeof(C)};
    launch(stream, AttentionArgs::kName, attention_kernel<T>, grid, problem, data<T>(args.out), data<C>(args.lse),
           tiles);
  });
}

void list_attention(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(attention_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
