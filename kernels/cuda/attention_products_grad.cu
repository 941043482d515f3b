// Attention by products, backward: the scores once more, and dP = dO V^T; from these the probabilities P with the
// dropout's factors M, and dS = P (M dP - delta); then dV = (P M)^T dO, dQ = scale dS K and dK = scale dS^T Q.
#include <optional>

#include "lockstep/kernels/cuda/attention_products.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

// The type of dS. Gradients may be smaller than f16 has numbers, before and after they are summed: in f32 then.
template <class T>
using Slope = std::conditional_t<std::is_same_v<T, Half>, float, T>;

// Blocks of a multiprocessor: as many as have registers, without any on the stack.
template <class T>
constexpr int kSlopeBlocks = sizeof(T) == 2 ? 2 : 4;

// P M and dS from the scores and from dP, in rows as these have them, or in their place. delta is sum(dO O).
template <class T>
__global__ void __launch_bounds__(kThreads, kSlopeBlocks<T>)
    attention_slope_kernel(const AttentionProblem<T> a, const ChunkRows rows, const Heads<T> dout, const Heads<T> out,
                           const Compute<T>* lse, const Compute<T>* scores, const Compute<T>* dp, T* probabilities,
                           Slope<T>* ds, int shift) {
  using C = Compute<T>;
  using P = typename ScoreRow<T>::P;
  constexpr int kCount = ScoreRow<T>::kCount, kPacks = 2;  // under way, of each of the two
  const int lanes = 1 << shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads >> shift) + (threadIdx.x >> shift);
  const bool inside = row < rows.count;
  const ChunkRows::Place at = rows.place(a, inside ? row : 0);
  const auto begin = [&](const Heads<T>& heads) {
    return heads.data + at.b * heads.strides.batch + at.h * heads.strides.head + at.i * heads.strides.row;
  };
  const T *go = begin(dout), *o = begin(out);
  C delta = 0;
  for (std::int64_t e = lane; e < a.value_size; e += lanes)
    delta += widen(o[e * out.strides.column]) * widen(go[e * dout.strides.column]);
  delta = from_first_lane(join_lanes(Sum<C>(), delta, lane, lanes, 1), lane, lanes, 1);
  if (!inside) return;

  const ScoreRow<T> line(a, rows, at, row, inside, scores);
  const C end = lse[at.row];
  const std::int64_t begins = row * rows.chunk.pitch;
  const std::int64_t step = std::int64_t{kCount} << shift;
  for (std::int64_t first = std::int64_t{kCount} * lane; first < rows.chunk.keys; first += kPacks * step) {
    P s[kPacks] = {}, d[kPacks] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (const std::int64_t j = first + p * step; j < line.seen) {
        s[p] = line.load(j);
        d[p] = *reinterpret_cast<const P*>(dp + begins + j);
      }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t j = first + p * step;
      if (j >= rows.chunk.keys) break;
      const P masked = line.masked(j, s[p]);
      Pack<T, kCount> kept;
      Pack<Slope<T>, kCount> slope;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        // What is not seen is zero, whatever lies there.
        const bool seen = j + k < line.seen;
        const C share = seen ? math::exp(masked.element[k] - end) : C(0);
        const C factor = a.drops && seen ? a.factor(at.b, at.h, at.i, j + k) : C(1);
        const C change = seen ? share * (d[p].element[k] * factor - delta) : C(0);
        kept.element[k] = narrow<T>(factor == C(0) ? C(0) : share * static_cast<C>(kOne<T>));
        if constexpr (std::is_same_v<Slope<T>, C>)
          slope.element[k] = change;
        else
          slope.element[k] = narrow<T>(change);
      }
      *reinterpret_cast<Pack<T, kCount>*>(probabilities + begins + j) = kept;
      *reinterpret_cast<Pack<Slope<T>, kCount>*>(ds + begins + j) = slope;
    }
  }
}

View view_of(void* data, DType dtype, const Shape& shape, Device device) {
  return {.data = data,
          .shape = shape,
          .strides = contiguous_strides(shape),
          .dtype = dtype,
          .device = device,
          .present = true};
}

// A gradient of keys or values of some heads: [units][keys][size]. Where chunks add to it, a sum in the type that
// computes, in the place of the result if that has this type.
class KeySums {
 public:
  KeySums(const Stream& stream, const View& result, std::int64_t unit, std::int64_t units, DType computes, bool at_once,
          Scratch& scratch)
      : stream_(stream) {
    const std::int64_t keys = result.shape[2], size = result.shape[3];
    const Shape shape{units, keys, size};
    void* begin =
        static_cast<std::byte*>(result.data) + unit * keys * size * static_cast<std::int64_t>(size_of(result.dtype));
    result_ = sum_ = view_of(begin, result.dtype, shape, stream.device());
    if (at_once) return;
    beta_ = 1;
    if (computes != result.dtype) {
      const auto bytes = static_cast<std::size_t>(element_count(shape)) * size_of(computes);
      sum_ = view_of(scratch.take_bytes(bytes), computes, shape, stream.device());
    }
    Kernels::enqueue(stream, FillArgs{.out = {sum_}, .value = 0});
  }
  // += alpha * scores^T x for the keys of a chunk.
  void add(const GemmMatrix& scores, const GemmMatrix& x, DType in, const Chunk& c, double alpha) const {
    const std::int64_t keys = sum_.shape[1], size = sum_.shape[2];
    gemm(stream_, AttentionGradArgs::kName,
         Gemm{.in = in,
              .out = sum_.dtype,
              .a = scores.transposed(),
              .b = x,
              .c = {sum_.data, c.keys, size, size, 1, keys * size},
              .batches = c.units,
              .alpha = alpha,
              .beta = beta_});
  }
  void finish() const {
    if (sum_.data != result_.data) Kernels::enqueue(stream_, CastArgs{.in = {sum_}, .out = {result_}});
  }

 private:
  const Stream& stream_;
  View result_, sum_;
  double beta_ = 0;
};

template <class T>
void differentiate(const Stream& stream, const AttentionGradArgs& args) {
  using C = Compute<T>;
  using S = Slope<T>;
  constexpr const char* kName = AttentionGradArgs::kName;
  constexpr DType kIn = dtype_of<T>(), kComputes = dtype_of<C>(), kSlope = dtype_of<S>();
  constexpr bool kInPlace = std::is_same_v<T, C>, kSlopeInPlace = std::is_same_v<S, C>;
  const AttentionProblem<T> a(args, stream);
  const ChunkPlan plan(a, args.causal, 2 * sizeof(C) + (kInPlace ? 0 : sizeof(T)) + (kSlopeInPlace ? 0 : sizeof(S)));
  Scratch scratch(stream);
  const std::int64_t most = plan.units * plan.heads * plan.queries * pitch_of(a.keys);
  C* scores = scratch.take<C>(most);
  C* dp = scratch.take<C>(most);
  T* probabilities;
  S* ds;
  if constexpr (kInPlace)
    probabilities = scores;
  else
    probabilities = scratch.take<T>(most);
  if constexpr (kSlopeInPlace)
    ds = dp;
  else
    ds = scratch.take<S>(most);
  const double kept = args.dropout.p < 1 ? 1 / (1 - args.dropout.p) : 0;
  const std::int64_t rows_of_unit = a.group * a.queries;
  // Whether a range is one chunk, of all keys.
  const bool at_once = plan.heads == a.group && plan.queries == a.queries &&
                       seen_keys(args.causal, args.variant, a.queries - 1, a.queries, a.keys) == a.keys;

  for (std::int64_t unit = 0; unit < a.batch * a.kv_heads; unit += plan.units) {
    const std::int64_t units = std::min(plan.units, a.batch * a.kv_heads - unit);
    Scratch packed(stream);
    const auto heads = [&](const In& in, std::int64_t count, bool folded, Want want) {
      return head_matrices(stream, kName, a, in.view, count, unit, units, folded, want, packed);
    };
    const bool folded = plan.heads > 1;
    const HeadMatrices q = heads(args.q, a.group, folded, {});
    const HeadMatrices k = heads(args.k, 1, false, {}), v = heads(args.v, 1, false, {});
    const HeadMatrices dout = heads(args.dout, a.group, folded, {});
    // What dS is multiplied with: of its type, and with zeros where it has zeros for keys that are not there.
    const HeadMatrices slope_q =
        args.dk.view.present && kIn != kSlope ? heads(args.q, a.group, folded, {.wide = true}) : q;
    const HeadMatrices slope_k =
        args.dq.view.present ? heads(args.k, 1, false, {.without_padding = true, .wide = kIn != kSlope}) : k;
    std::optional<KeySums> dk, dv;
    if (args.dk.view.present)
      dk.emplace(stream, args.dk.view, unit, units, kComputes, at_once && kIn == kSlope, packed);
    if (args.dv.view.present) dv.emplace(stream, args.dv.view, unit, units, kComputes, at_once, packed);
    HeadMatrices dq{nullptr, kSlope, rows_of_unit * a.key_size, a.queries * a.key_size, a.key_size, 1, a.key_size};
    View dq_result;
    if (args.dq.view.present) {
      dq_result = view_of(data<T>(args.dq) + unit * dq.unit, kIn, {units, rows_of_unit, a.key_size}, stream.device());
      dq.data = kIn == kSlope ? dq_result.data : packed.take<S>(units * dq.unit);
    }
    plan.for_each(a, args, unit, units, [&](const Chunk& c) {
      const GemmMatrix go = dout.matrix(c.head, c.query, c.rows());
      multiply_scores<T>(stream, kName, q.matrix(c.head, c.query, c.rows()), k.matrix(0, 0, c.keys), c, args.scale,
                         scores);
      multiply_scores<T>(stream, kName, go, v.matrix(0, 0, c.keys), c, 1, dp);
      const ChunkRows rows(c, a);
      const int shift = row_shift<T>(c.keys, 2);
      launch(stream, kName, attention_slope_kernel<T>, row_grid<T>(rows.count, shift), a, rows,
             Heads<T>(args.dout.view), Heads<T>(args.out.view), data<C>(args.lse), static_cast<const C*>(scores),
             static_cast<const C*>(dp), probabilities, ds, shift);
      if (dv) dv->add(score_matrix(probabilities, c), go, kIn, c, kept / kOne<T>);
      if (dk) dk->add(score_matrix(ds, c), slope_q.matrix(c.head, c.query, c.rows()), kSlope, c, args.scale);
      if (args.dq.view.present)
        gemm(stream, kName,
             Gemm{.in = kSlope,
                  .out = kSlope,
                  .a = score_matrix(ds, c),
                  .b = slope_k.matrix(0, 0, c.keys),
                  .c = dq.matrix(c.head, c.query, c.rows()),
                  .batches = c.units,
                  .alpha = args.scale});
    });
    if (dk) dk->finish();
    if (dv) dv->finish();
    if (dq.data != dq_result.data)
      Kernels::enqueue(
          stream, CastArgs{.in = {view_of(dq.data, kSlope, dq_result.shape, stream.device())}, .out = {dq_result}});
  }
}

}  // namespace

void attention_grad_by_products(const Stream& stream, const AttentionGradArgs& args) {
  const trace::WorkScope scope(stream, {.name = "attention_grad by products", .kind = trace::Kind::kernel});
  dispatch_floating(args.q.view.dtype, [&]<class T>(Type<T>) { differentiate<T>(stream, args); });
}

void list_attention_products_grad(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(attention_slope_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
