// Attention, backward: the probabilities are made again from the saved logarithms of the rows' sums. One kernel for the
// gradient of the queries, by tiles of queries, and one for those of keys and values, by tiles of keys: no sum is
// shared between blocks, so its order is fixed (FlashAttention-2, Dao, 2023, does the first with atomic additions).
#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/kernels/cuda/cublas_lt.h"
#include "lockstep/kernels/cuda/cudnn_attention.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kGradBlocks = 3;  // on a multiprocessor, at least; one more would put numbers on the stack

// dQ = scale dS K with dS = P (dP - delta), and delta = sum(dO O) of every query for the second kernel.
template <class T>
__global__ void __launch_bounds__(kThreads, kGradBlocks)
    attention_grad_query_kernel(const AttentionProblem<T> a, const Heads<T> dout, const Heads<T> out,
                                const Compute<T>* lse, Compute<T>* deltas, T* dq, std::int64_t query_tiles) {
  using P = AttentionProblem<T>;
  using C = Compute<T>;
  constexpr int kTile = P::kTile, kLanes = P::kLanes, kEach = P::kEach;
  const int q_row = static_cast<int>(a.key_size) + 1, v_row = static_cast<int>(a.value_size) + 1;
  C* q = dynamic_shared<C>();
  C* k = q + kTile * q_row;
  C* sums = k + kTile * q_row;
  C* v = sums + kTile * q_row;
  C* go = v + kTile * v_row;
  C* ds = go + kTile * v_row;

  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t head = blockIdx.x / query_tiles, begin = blockIdx.x % query_tiles * kTile, i = begin + row;
  const std::int64_t b = head / a.heads, h = head % a.heads, g = h / a.group, length = a.length(b);
  load_tile(a.q, b, h, begin, a.queries, a.key_size, q);
  load_tile(dout, b, h, begin, a.queries, a.value_size, go);
  load_tile(out, b, h, begin, a.queries, a.value_size, v);
  for (int d = lane; d < a.key_size; d += kLanes) sums[row * q_row + d] = 0;
  __syncthreads();
  C part = 0;
  for (int e = lane; e < a.value_size; e += kLanes) part += v[row * v_row + e] * go[row * v_row + e];
  ds[row * (kTile + 1) + lane] = part;
  __syncthreads();
  C delta = 0;
  for (int n = 0; n < kLanes; ++n) delta += ds[row * (kTile + 1) + n];
  const bool inside = i < a.queries;
  if (inside && lane == 0) deltas[head * a.queries + i] = delta;
  const C shift = inside ? lse[head * a.queries + i] : P::infinity();

  const std::int64_t limit = a.seen(begin + kTile < a.queries ? begin + kTile - 1 : a.queries - 1, length);
  for (std::int64_t j = 0; j < limit; j += kTile) {
    __syncthreads();
    load_tile(a.k, b, g, j, length, a.key_size, k);
    load_tile(a.v, b, g, j, length, a.value_size, v);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int c = lane + n * kLanes;
      const C p = math::exp(a.score(b, h, i, j + c, length, dot(q + row * q_row, k + c * q_row, a.key_size)) - shift);
      C dp = dot(go + row * v_row, v + c * v_row, a.value_size);
      if (a.drops) dp *= a.factor(b, h, i, j + c);
      ds[row * (kTile + 1) + c] = p * (dp - delta);
    }
    __syncthreads();
    for (int d = lane; d < a.key_size; d += kLanes) {
      C sum = sums[row * q_row + d];
      for (int c = 0; c < kTile; ++c) sum += ds[row * (kTile + 1) + c] * k[c * q_row + d];
      sums[row * q_row + d] = sum;
    }
  }
  if (!inside || dq == nullptr) return;
  T* to = dq + (head * a.queries + i) * a.key_size;
  for (int d = lane; d < a.key_size; d += kLanes) to[d] = narrow<T>(sums[row * q_row + d] * a.scale);
}

// dK = scale dS^T Q, dV = (P M)^T dO with M the dropout's factors.
template <class T>
__global__ void __launch_bounds__(kThreads, kGradBlocks)
    attention_grad_key_kernel(const AttentionProblem<T> a, const Heads<T> dout, const Compute<T>* lse,
                              const Compute<T>* deltas, T* dk, T* dv, std::int64_t key_tiles) {
  using P = AttentionProblem<T>;
  using C = Compute<T>;
  constexpr int kTile = P::kTile, kLanes = P::kLanes, kEach = P::kEach;
  const int q_row = static_cast<int>(a.key_size) + 1, v_row = static_cast<int>(a.value_size) + 1;
  C* q = dynamic_shared<C>();
  C* k = q + kTile * q_row;
  C* key_sums = k + kTile * q_row;
  C* v = key_sums + kTile * q_row;
  C* go = v + kTile * v_row;
  C* value_sums = go + kTile * v_row;
  C* probabilities = value_sums + kTile * v_row;
  C* ds = probabilities + kTile * (kTile + 1);

  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t head = blockIdx.x / key_tiles, begin = blockIdx.x % key_tiles * kTile, j = begin + row;
  const std::int64_t b = head / a.kv_heads, g = head % a.kv_heads, length = a.length(b);
  load_tile(a.k, b, g, begin, length, a.key_size, k);
  load_tile(a.v, b, g, begin, length, a.value_size, v);
  for (int d = lane; d < a.key_size; d += kLanes) key_sums[row * q_row + d] = 0;
  for (int e = lane; e < a.value_size; e += kLanes) value_sums[row * v_row + e] = 0;

  const std::int64_t earliest = first_query(a.causal, a.variant, begin, a.queries, length) / kTile * kTile;
  for (std::int64_t h = g * a.group; h < (g + 1) * a.group; ++h)
    for (std::int64_t first = earliest; first < a.queries; first += kTile) {
      __syncthreads();
      load_tile(a.q, b, h, first, a.queries, a.key_size, q);
      load_tile(dout, b, h, first, a.queries, a.value_size, go);
      __syncthreads();
      // Here a row is a query …
      const std::int64_t i = first + row, at = (b * a.heads + h) * a.queries + i;
      const C shift = i < a.queries ? lse[at] : P::infinity();
      const C delta = i < a.queries ? deltas[at] : C(0);
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int c = lane + n * kLanes;
        const C product = dot(q + row * q_row, k + c * q_row, a.key_size);
        const C p = math::exp(a.score(b, h, i, begin + c, length, product) - shift);
        const C dp = dot(go + row * v_row, v + c * v_row, a.value_size);
        const C factor = a.drops ? a.factor(b, h, i, begin + c) : C(1);
        ds[row * (kTile + 1) + c] = p * (dp * factor - delta);
        probabilities[row * (kTile + 1) + c] = p * factor;
      }
      __syncthreads();
      // … and here a key.
      for (int d = lane; d < a.key_size; d += kLanes) {
        C sum = key_sums[row * q_row + d];
        for (int r = 0; r < kTile; ++r) sum += ds[r * (kTile + 1) + row] * q[r * q_row + d];
        key_sums[row * q_row + d] = sum;
      }
      for (int e = lane; e < a.value_size; e += kLanes) {
        C sum = value_sums[row * v_row + e];
        for (int r = 0; r < kTile; ++r) sum += probabilities[r * (kTile + 1) + row] * go[r * v_row + e];
        value_sums[row * v_row + e] = sum;
      }
    }
  if (j >= a.keys) return;
  if (dk)
    for (int d = lane; d < a.key_size; d += kLanes)
      dk[(head * a.keys + j) * a.key_size + d] = narrow<T>(key_sums[row * q_row + d] * a.scale);
  if (dv)
    for (int e = lane; e < a.value_size; e += kLanes)
      dv[(head * a.keys + j) * a.value_size + e] = narrow<T>(value_sums[row * v_row + e]);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const AttentionGradArgs& args) {
  const DType dtype = args.q.view.dtype;
  constexpr const char* kName = AttentionGradArgs::kName;
  check_floating(kName, dtype, stream);
  check_head_size(args, stream);
  const AttentionSizes sizes = attention_sizes(args.q.view, args.k.view, args.v.view, View());
  if (attention_way(sizes, args.dropout.p > 0, true, has_cublas_lt()) == AttentionWay::products) {
    if (!attention_grad_by_cudnn(stream, args)) attention_grad_by_products(stream, args);
    return;
  }
  const trace::WorkScope scope(stream, {.name = "attention_grad by tiles", .kind = trace::Kind::kernel});
  dispatch_floating(dtype, [&]<class T>(Type<T>) {
    using P = AttentionProblem<T>;
    using C = Compute<T>;
    const P problem(args, stream);
    const std::int64_t heads = problem.batch * problem.heads, kv_heads = problem.batch * problem.kv_heads;
    const std::int64_t query_tiles = problem.tiles(problem.queries), key_tiles = problem.tiles(problem.keys);
    const int d = static_cast<int>(problem.key_size) + 1, e = static_cast<int>(problem.value_size) + 1;
    const auto grid = [](std::int64_t blocks, int elements) {
      return Grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                  static_cast<std::size_t>(P::kTile * elements) * sizeof(C)};
    };
    const Heads<T> dout(args.dout.view), out(args.out.view);
    const C* lse = data<C>(args.lse);
    Scratch scratch(stream);
    C* deltas = scratch.take<C>(heads * problem.queries);
    if (heads * query_tiles > 0)
      launch(stream, kName, attention_grad_query_kernel<T>, grid(heads * query_tiles, 3 * d + 2 * e + P::kTile + 1),
             problem, dout, out, lse, deltas, data<T>(args.dq), query_tiles);
    if (kv_heads * key_tiles > 0 && (args.dk.view.present || args.dv.view.present))
      launch(stream, kName, attention_grad_key_kernel<T>,
             grid(kv_heads * key_tiles, 3 * d + 3 * e + 2 * (P::kTile + 1)), problem, dout, lse,
             static_cast<const C*>(deltas), data<T>(args.dk), data<T>(args.dv), key_tiles);
  });
}

void list_attention_grad(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(attention_grad_query_kernel<T>);
    list.add(attention_grad_key_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
