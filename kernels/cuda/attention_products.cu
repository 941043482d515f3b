// Attention by products, forward: scores = scale Q K^T, their softmax, and its product with V.
#include "lockstep/kernels/cuda/attention_products.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

struct PackSizes {
  std::int64_t count;  // packs
  std::int64_t unit, heads, size;
  Splitter by_pack, by_row, by_head, by_unit;
};

// to: [units][heads][rows][size].
template <class T, class To, int kCount>
__global__ void __launch_bounds__(kThreads)
    pack_heads_kernel(const AttentionProblem<T> a, const Heads<T> from, Pack<To, kCount>* to, const PackSizes s,
                      bool without_padding) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < s.count; n += step) {
    std::int64_t pack, row, head, g;
    const std::int64_t unit = s.by_head.split(s.by_row.split(s.by_pack.split(n, &pack), &row), &head);
    const std::int64_t b = s.by_unit.split(s.unit + unit, &g);
    Pack<To, kCount> out{};
    if (!without_padding || row < a.length(b)) {
      const T* at = from.data + b * from.strides.batch + (g * s.heads + head) * from.strides.head +
                    row * from.strides.row + pack * kCount * from.strides.column;
      Pack<T, kCount> in;
      if constexpr (kCount > 1)
        in = *reinterpret_cast<const Pack<T, kCount>*>(at);
      else
        in.element[0] = *at;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if constexpr (std::is_same_v<T, To>)
          out.element[k] = in.element[k];
        else
          out.element[k] = widen(in.element[k]);
      }
    }
    to[n] = out;
  }
}

// lse, and the probabilities in rows as the scores have them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_softmax_kernel(const AttentionProblem<T> a, const ChunkRows rows, const Compute<T>* scores,
                             T* probabilities, Compute<T>* lse, int shift) {
  using C = Compute<T>;
  using P = typename ScoreRow<T>::P;
  constexpr int kCount = ScoreRow<T>::kCount, kPacks = 4;  // of a thread, in registers
  const int lanes = 1 << shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads >> shift) + (threadIdx.x >> shift);
  const bool inside = row < rows.count;
  const ChunkRows::Place at = rows.place(a, inside ? row : 0);
  const ScoreRow<T> line(a, rows, at, row, inside, scores);
  const std::int64_t columns = inside ? rows.chunk.keys : 0;

  // A row that fits is read once; the parts of a longer one anew in every pass, and found in the cache.
  P held[kPacks] = {};
  std::int64_t held_part = -1;
  const auto position = [&](std::int64_t part, int p) { return (((part * kPacks + p) << shift) + lane) * kCount; };
  const auto for_packs = [&](auto&& f) {
    for (std::int64_t part = 0; position(part, 0) < columns; ++part) {
      if (part != held_part) {
        held_part = part;
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
          if (position(part, p) < line.seen) held[p] = line.load(position(part, p));
#pragma unroll
        for (int p = 0; p < kPacks; ++p) held[p] = line.masked(position(part, p), held[p]);
      }
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (position(part, p) < columns) f(position(part, p), held[p]);
    }
  };
  const bool fits = position(1, 0) - lane * kCount >= columns;

  C top = -AttentionProblem<T>::infinity();
  for_packs([&](std::int64_t, P& pack) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) top = functors::larger(pack.element[k], top);
  });
  top = from_first_lane(join_lanes(Larger<C>(), top, lane, lanes, 1), lane, lanes, 1);
  const bool empty = top == -AttentionProblem<T>::infinity();
  C total = 0;
  for_packs([&](std::int64_t, P& pack) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const C e = empty ? C(0) : math::exp(pack.element[k] - top);
      total += e;
      if (fits) pack.element[k] = e;
    }
  });
  total = from_first_lane(join_lanes(Sum<C>(), total, lane, lanes, 1), lane, lanes, 1);
  const C share = total == C(0) ? C(0) : static_cast<C>(kOne<T>) / total;
  T* to = probabilities + row * rows.chunk.pitch;
  for_packs([&](std::int64_t j, P& pack) {
    Pack<T, kCount> out;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      C p = fits ? pack.element[k] : empty ? C(0) : math::exp(pack.element[k] - top);
      if (a.drops && j + k < line.seen && a.factor(at.b, at.h, at.i, j + k) == C(0)) p = 0;
      out.element[k] = narrow<T>(p * share);
    }
    *reinterpret_cast<Pack<T, kCount>*>(to + j) = out;
  });
  if (inside && lane == 0) lse[at.row] = total == C(0) ? AttentionProblem<T>::infinity() : top + math::log(total);
}

template <class T>
void attend(const Stream& stream, const AttentionArgs& args) {
  using C = Compute<T>;
  constexpr const char* kName = AttentionArgs::kName;
  const AttentionProblem<T> a(args, stream);
  // f32 and f64 have their probabilities in the place of the scores.
  constexpr bool kInPlace = std::is_same_v<T, C>;
  const ChunkPlan plan(a, args.causal, sizeof(C) + (kInPlace ? 0 : sizeof(T)));
  Scratch scratch(stream);
  const std::int64_t most = plan.units * plan.heads * plan.queries * pitch_of(a.keys);
  C* scores = scratch.take<C>(most);
  T* probabilities;
  if constexpr (kInPlace)
    probabilities = scores;
  else
    probabilities = scratch.take<T>(most);
  const double kept = args.dropout.p < 1 ? 1 / (1 - args.dropout.p) : 0;
  for (std::int64_t unit = 0; unit < a.batch * a.kv_heads; unit += plan.units) {
    const std::int64_t units = std::min(plan.units, a.batch * a.kv_heads - unit);
    Scratch packed(stream);
    const auto heads = [&](const In& in, std::int64_t count, bool folded, Want want) {
      return head_matrices(stream, kName, a, in.view, count, unit, units, folded, want, packed);
    };
    const HeadMatrices q = heads(args.q, a.group, plan.heads > 1, {});
    const HeadMatrices k = heads(args.k, 1, false, {});
    const HeadMatrices v = heads(args.v, 1, false, {.without_padding = true});
    const HeadMatrices out{data<T>(args.out) + unit * a.group * a.queries * a.value_size,
                           dtype_of<T>(),
                           a.group * a.queries * a.value_size,
                           a.queries * a.value_size,
                           a.value_size,
                           1,
                           a.value_size};
    plan.for_each(a, args, unit, units, [&](const Chunk& c) {
      multiply_scores<T>(stream, kName, q.matrix(c.head, c.query, c.rows()), k.matrix(0, 0, c.keys), c, args.scale,
                         scores);
      const ChunkRows rows(c, a);
      const int shift = row_shift<T>(c.keys, 4);
      launch(stream, kName, attention_softmax_kernel<T>, row_grid<T>(rows.count, shift), a, rows,
             static_cast<const C*>(scores), probabilities, data<C>(args.lse), shift);
      gemm(stream, kName,
           Gemm{.in = dtype_of<T>(),
                .out = dtype_of<T>(),
                .a = score_matrix(probabilities, c),
                .b = v.matrix(0, 0, c.keys),
                .c = out.matrix(c.head, c.query, c.rows()),
                .batches = c.units,
                .alpha = kept / kOne<T>});
    });
  }
}

}  // namespace

template <class T>
HeadMatrices head_matrices(const Stream& stream, const char* op, const AttentionProblem<T>& a, const View& view,
                           std::int64_t heads, std::int64_t unit, std::int64_t units, bool folded, Want want,
                           Scratch& scratch) {
  const HeadStrides s = head_strides(view);
  const std::int64_t rows = view.shape[2], size = view.shape[3];
  const bool one_batch = unit / a.kv_heads == (unit + units - 1) / a.kv_heads;
  const bool flat = one_batch || s.batch == view.shape[1] * s.head;
  const bool folds = !folded || heads == 1 || s.head == rows * s.row;
  const GemmMatrix one{nullptr, folded ? heads * rows : rows, size, s.row, s.column};
  const bool wide = want.wide && !std::is_same_v<T, Compute<T>>;
  const bool without_padding = want.without_padding && a.lengths.data;
  if (!without_padding && !wide && flat && folds && has_unit_stride(one)) {
    const std::int64_t first = unit / a.kv_heads * s.batch + unit % a.kv_heads * heads * s.head;
    return {const_cast<T*>(static_cast<const T*>(view.data)) + first,
            dtype_of<T>(),
            heads * s.head,
            s.head,
            s.row,
            s.column,
            size};
  }
  const Heads<T> from(view);
  const auto pack = [&]<class To, int kCount>(Type<To>, std::integral_constant<int, kCount>) {
    const std::int64_t count = units * heads * rows * size;
    void* to = scratch.take<To>(count);
    const PackSizes sizes{count / kCount,
                          unit,
                          heads,
                          size,
                          Splitter(size / kCount, count),
                          Splitter(rows, count),
                          Splitter(heads, count),
                          Splitter(a.kv_heads, a.batch * a.kv_heads)};
    launch(stream, op, pack_heads_kernel<T, To, kCount>, grid_for(stream, sizes.count), a, from,
           static_cast<Pack<To, kCount>*>(to), sizes, without_padding);
    return HeadMatrices{to, dtype_of<To>(), heads * rows * size, rows * size, size, 1, size};
  };
  const auto pack_as = [&]<class To>(Type<To> type) {
    constexpr int kCount = kPack<T>;
    const bool packs = s.column == 1 && size % kCount == 0 && s.row % kCount == 0 && s.head % kCount == 0 &&
                       s.batch % kCount == 0 && aligned_for(view.data, view.dtype, kCount);
    return packs ? pack(type, std::integral_constant<int, kCount>()) : pack(type, std::integral_constant<int, 1>());
  };
  if constexpr (std::is_same_v<T, Half>) {
    if (wide) return pack_as(Type<float>());
  }
  return pack_as(Type<T>());
}

template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<float>&, const View&,
                                    std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<double>&, const View&,
                                    std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<Half>&, const View&,
                                    std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<BFloat16>&, const View&,
                                    std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);

void attention_by_products(const Stream& stream, const AttentionArgs& args) {
  const trace::WorkScope scope(stream, {.name = "attention by products", .kind = trace::Kind::kernel});
  dispatch_floating(args.q.view.dtype, [&]<class T>(Type<T>) { attend<T>(stream, args); });
}

void list_attention_products(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(attention_softmax_kernel<T>);
    list.add(pack_heads_kernel<T, T, kPack<T>>);
    list.add(pack_heads_kernel<T, T, 1>);
  });
  list.add(pack_heads_kernel<Half, float, kPack<Half>>);
  list.add(pack_heads_kernel<Half, float, 1>);
}

}  // namespace lockstep::kernels::cuda
