#include "lockstep/kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <limits>

#include "lockstep/kernels/cuda/workspace.h"
#include "lockstep/runtime/cuda/current_device.h"

namespace lockstep::kernels::cuda {
namespace {

namespace dnn = lockstep::cudnn;
using dnn::Dims;

// The identifiers of arrays and numbers in a plan.
enum Id : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,  // per query: the sum of dout * out
  kScale,
  kOne,
  kMinusInfinity,
  kKeys,
  kQueries,
};
enum Of : std::size_t { of_q, of_k, of_v, of_out, of_dout };

constexpr int kAlignment = 16;
// Fewer are those of decoding, whose keys grow by some with each step: each would be a plan of its own.
constexpr std::int64_t kFewestQueries = 16;
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;

Dims transposed(const Dims& d) { return {d[0], d[1], d[3], d[2]}; }

class Describer {
 public:
  Describer(dnn::Maker& maker, const CudnnAttention& a)
      : a_(a),
        s_(a.sizes),
        graph_(maker),
        type_(dnn::type_of(a.dtype)),
        scores_{s_.batch, s_.heads, s_.queries, s_.keys},
        rows_{s_.batch, s_.heads, s_.queries, 1},
        scale_(graph_.scalar(kScale)) {}

  std::vector<dnn::Descriptor> forward() {
    const auto q = array(kQ, query_heads(s_.key_size), a_.strides[of_q]);
    const auto k = array(kK, transposed(key_heads(s_.key_size)), transposed(a_.strides[of_k]));
    const auto v = array(kV, key_heads(s_.value_size), a_.strides[of_v]);
    const auto out = array(kOut, query_heads(s_.value_size), a_.strides[of_out]);
    const auto scores = masked(scaled(product(q, k)));
    const auto top = row(), total = row(), log_total = row();
    graph_.reduce(dnn::kReduceMax, scores, top);
    const auto exponentials = apply(dnn::kExp, apply(dnn::kSub, scores, top));
    graph_.reduce(dnn::kReduceAdd, exponentials, total);
    graph_.pointwise(dnn::kLog, total, nullptr, log_total);
    graph_.pointwise(dnn::kAdd, top, log_total, number_of_row(kLse));
    const auto probabilities = graph_.between(scores_, type_);
    graph_.pointwise(dnn::kDiv, exponentials, total, probabilities);
    graph_.matmul(probabilities, v, out);
    return graph_.operations();
  }

  std::vector<dnn::Descriptor> backward() {
    const Dims q_dims = query_heads(s_.key_size), k_dims = key_heads(s_.key_size), v_dims = key_heads(s_.value_size),
               out_dims = query_heads(s_.value_size);
    const auto q = array(kQ, q_dims, a_.strides[of_q]);
    const auto k = array(kK, transposed(k_dims), transposed(a_.strides[of_k]));
    const auto v = array(kV, transposed(v_dims), transposed(a_.strides[of_v]));
    const auto out = array(kOut, out_dims, a_.strides[of_out]), dout = array(kDout, out_dims, a_.strides[of_dout]);
    const auto shares = graph_.between(out_dims), sums = row(), delta = number_of_row(kDelta);
    graph_.pointwise(dnn::kMul, dout, out, shares);
    graph_.reduce(dnn::kReduceAdd, shares, sums);
    graph_.pointwise(dnn::kMul, sums, graph_.scalar(kOne), delta);  // cuDNN expects the factor of a dropout

    const auto probabilities = apply(dnn::kExp, masked(apply(dnn::kSub, scaled(product(q, k)), number_of_row(kLse))));
    sum_keys(turned(probabilities), dout, v_dims, kDv);

    const auto slopes = apply(dnn::kMul, apply(dnn::kSub, product(dout, v), delta), probabilities);
    const auto scaled_slopes = apply(dnn::kMul, slopes, scale_);
    sum_keys(turned(scaled_slopes), q, k_dims, kDk);

    const auto keys = graph_.between(k_dims, a_.strides[of_k], type_);
    graph_.reshape(k, keys);
    graph_.matmul(scaled_slopes, keys, array(kDq, q_dims, dnn::row_major(q_dims)));
    return graph_.operations();
  }

 private:
  using Node = dnn::Descriptor;

  Dims query_heads(std::int64_t size) const { return {s_.batch, s_.heads, s_.queries, size}; }
  Dims key_heads(std::int64_t size) const { return {s_.batch, s_.kv_heads, s_.keys, size}; }
  Node array(Id id, const Dims& dims, const Dims& strides) {
    return graph_.array({.id = id, .type = type_, .dims = dims, .strides = strides, .alignment = kAlignment});
  }
  Node number_of_row(Id id) {
    return graph_.array({.id = id,
                         .type = dnn::kFloat,
                         .dims = rows_,
                         .strides = {s_.heads * s_.queries, s_.queries, 1, 1},
                         .alignment = sizeof(float)});
  }
  Node row() { return graph_.between(rows_); }
  // Of scores.
  Node product(Node a, Node b) {
    const Node made = graph_.between(scores_);
    graph_.matmul(a, b, made);
    return made;
  }
  Node apply(dnn::PointwiseMode mode, Node x, Node b = nullptr) {
    const Node made = graph_.between(scores_);
    graph_.pointwise(mode, x, b, made);
    return made;
  }
  Node scaled(Node scores) { return apply(dnn::kMul, scores, scale_); }
  // Query i sees key j where i + (keys - queries, at the lower right) >= j.
  Node masked(Node scores) {
    if (!a_.causal) return scores;
    const auto integers = [&] { return graph_.between(scores_, dnn::kInt32); };
    Node query = integers();
    const Node key = integers();
    graph_.index(2, scores, query);
    graph_.index(3, scores, key);
    if (a_.variant == CausalVariant::lower_right)
      for (const auto& [mode, id] : {std::pair(dnn::kAdd, kKeys), std::pair(dnn::kSub, kQueries)}) {
        const Node moved = integers();
        graph_.pointwise(mode, query, graph_.scalar(id, dnn::kInt32), moved, dnn::kInt32);
        query = moved;
      }
    const Node sees = graph_.between(scores_, dnn::kBoolean), made = graph_.between(scores_);
    graph_.pointwise(dnn::kGreaterEqual, query, key, sees, dnn::kBoolean);
    graph_.select(sees, scores, graph_.scalar(kMinusInfinity), made);
    return made;
  }
  // [B, H, S, T] of scores.
  Node turned(Node scores) {
    const Node made = graph_.between(transposed(scores_), transposed(dnn::row_major(scores_)), type_);
    graph_.reshape(scores, made);
    return made;
  }
  // The sums over queries, and over the heads of queries that go with one of keys.
  void sum_keys(Node turned_scores, Node of_queries, const Dims& dims, Id to) {
    const Node result = array(to, dims, dnn::row_major(dims));
    if (s_.heads == s_.kv_heads) return graph_.matmul(turned_scores, of_queries, result);
    const Node each = graph_.between({s_.batch, s_.heads, s_.keys, dims[3]}, type_);
    graph_.matmul(turned_scores, of_queries, each);
    graph_.reduce(dnn::kReduceAdd, each, result);
  }

  const CudnnAttention& a_;
  const AttentionSizes& s_;
  dnn::GraphMaker graph_;
  dnn::DataType type_;
  Dims scores_, rows_;
  Node scale_;
};

// Strides of dimensions of one element, which may be any, are as if the array were contiguous.
Dims strides_of(const View& v) {
  const Dims dense = dnn::row_major({v.shape[0], v.shape[1], v.shape[2], v.shape[3]});
  Dims strides;
  for (std::size_t d = 0; d < 4; ++d)
    strides[d] = v.shape[static_cast<int>(d)] == 1 ? dense[d] : v.strides[static_cast<int>(d)];
  return strides;
}

// Whether rows are whole, and begin at 16 bytes.
bool lies_well(const View& v) {
  constexpr std::int64_t kElements = kAlignment / 2;
  const Dims strides = strides_of(v);
  std::int64_t extent = 1;
  for (std::size_t d = 0; d < 4; ++d) extent += (v.shape[static_cast<int>(d)] - 1) * strides[d];
  if (alignment_of(v.data) < kAlignment || v.shape[3] % kElements != 0 || extent >= kMostElements) return false;
  return strides[3] == 1 && std::all_of(strides.begin(), strides.begin() + 3,
                                        [](std::int64_t stride) { return stride > 0 && stride % kElements == 0; });
}

template <class Args>
std::optional<CudnnAttention> describe(const Args& a, const View& block_table, bool backward) {
  const DType dtype = a.q.view.dtype;
  if ((dtype != DType::bf16 && (dtype != DType::f16 || backward)) || a.mask.view.present || a.seqlens_k.view.present ||
      block_table.present || a.dropout.p > 0)
    return std::nullopt;
  const AttentionSizes s = attention_sizes(a.q.view, a.k.view, a.v.view, block_table);
  for (const std::int64_t size : {s.batch, s.heads, s.kv_heads, s.keys, s.key_size, s.value_size})
    if (size == 0) return std::nullopt;
  if (s.queries < kFewestQueries) return std::nullopt;
  if (a.causal && a.variant == CausalVariant::lower_right && s.queries > s.keys) return std::nullopt;
  for (const View* view : {&a.q.view, &a.k.view, &a.v.view, &a.out.view})
    if (!lies_well(*view)) return std::nullopt;
  return CudnnAttention{
      .backward = backward,
      .dtype = dtype,
      .sizes = s,
      .causal = a.causal,
      .variant = a.causal ? a.variant : CausalVariant::upper_left,
      .strides = {strides_of(a.q.view), strides_of(a.k.view), strides_of(a.v.view), strides_of(a.out.view), Dims{}}};
}

bool has_attention() { return dnn::library() && dnn::library()->version() >= kOldestAttention; }

// The numbers that a call has in host memory.
struct Numbers {
  float scale, one = 1, minus_infinity = -std::numeric_limits<float>::infinity();
  std::int32_t keys, queries;

  Numbers(double by, const AttentionSizes& s)
      : scale(static_cast<float>(by)),
        keys(static_cast<std::int32_t>(s.keys)),
        queries(static_cast<std::int32_t>(s.queries)) {}
  // Those that the graph has.
  void add_to(std::vector<dnn::Operand>& operands, const CudnnAttention& a) const {
    operands.push_back({kScale, &scale});
    if (a.backward) operands.push_back({kOne, &one});
    if (a.causal) operands.push_back({kMinusInfinity, &minus_infinity});
    if (a.causal && a.variant == CausalVariant::lower_right) {
      operands.push_back({kKeys, &keys});
      operands.push_back({kQueries, &queries});
    }
  }
};

// How a gradient is divided: into calls of `batch` sequences and `kv_heads` heads of keys, all alike. Not at all where
// one head of keys is too much.
struct Division {
  std::int64_t batch, kv_heads;
};
std::optional<Division> divide(CudnnAttention a) {
  const AttentionSizes whole = a.sizes;
  const std::int64_t group = whole.heads / whole.kv_heads;
  const auto fits = [&](std::int64_t batch, std::int64_t kv_heads) {
    a.sizes.batch = batch, a.sizes.kv_heads = kv_heads, a.sizes.heads = group * kv_heads;
    return a.workspace_bytes() <= most_slope_bytes;
  };
  for (std::int64_t batch = whole.batch; batch >= 1; --batch)
    if (whole.batch % batch == 0 && fits(batch, whole.kv_heads)) return Division{batch, whole.kv_heads};
  for (std::int64_t kv_heads = whole.kv_heads - 1; kv_heads >= 1; --kv_heads)
    if (whole.kv_heads % kv_heads == 0 && fits(1, kv_heads)) return Division{1, kv_heads};
  return std::nullopt;
}

// The part of an array that begins at a sequence and a head.
const void* part(const View& v, std::int64_t batch, std::int64_t head) {
  const std::int64_t at = batch * v.strides[0] + head * v.strides[1];
  return static_cast<const std::byte*>(v.data) + at * static_cast<std::int64_t>(size_of(v.dtype));
}

}  // namespace

PlanKey CudnnAttention::family() const {
  constexpr std::int64_t kBehindConvolutions = 100;
  // Which of them is the inner one is known to a kernel that is compiled.
  const auto heads_lie_within_rows = [&](std::size_t of) {
    const std::int64_t heads = of == of_q ? sizes.heads : sizes.kv_heads;
    return heads > 1 && strides[of][1] < strides[of][2];
  };
  return {kBehindConvolutions + backward,
          static_cast<std::int64_t>(dtype),
          causal,
          static_cast<std::int64_t>(variant),
          sizes.heads,
          sizes.kv_heads,
          sizes.key_size,
          sizes.value_size,
          heads_lie_within_rows(of_q),
          heads_lie_within_rows(of_k),
          heads_lie_within_rows(of_v)};
}

PlanKey CudnnAttention::key() const {
  PlanKey key = family();
  key.insert(key.end(), {sizes.batch, sizes.queries, sizes.keys});
  for (const Dims& of_array : strides) key.insert(key.end(), of_array.begin(), of_array.end());
  return key;
}

std::int64_t CudnnAttention::workspace_bytes() const {
  const AttentionSizes& s = sizes;
  const auto up = [](std::int64_t size) { return (size + 127) / 128 * 128; };
  const std::int64_t scores = s.heads * up(s.queries) * up(s.keys);
  // Each query head's gradients of keys and values, before they are added up.
  const std::int64_t heads = s.heads == s.kv_heads ? 0 : s.heads * up(s.keys) * (s.key_size + s.value_size);
  return s.batch * (scores + heads) * static_cast<std::int64_t>(size_of(dtype));
}

dnn::PlanRequest CudnnAttention::request() const {
  constexpr std::int64_t kOwn = std::int64_t{32} << 20;  // an engine's, beside that
  return {.operations =
              [this](dnn::Maker& maker) {
                Describer describer(maker, *this);
                return backward ? describer.backward() : describer.forward();
              },
          .most_workspace = kOwn + (backward ? workspace_bytes() : 0)};
}

std::optional<CudnnAttention> cudnn_attention(const AttentionArgs& args) {
  return describe(args, args.block_table.view, false);
}

std::optional<CudnnAttention> cudnn_attention(const AttentionGradArgs& args) {
  if (!args.dq.view.present || !args.dk.view.present || !args.dv.view.present || !lies_well(args.dout.view))
    return std::nullopt;
  for (const Out* result : {&args.dq, &args.dk, &args.dv})
    if (alignment_of(result->view.data) < kAlignment) return std::nullopt;
  std::optional<CudnnAttention> made = describe(args, View(), true);
  if (made) made->strides[of_dout] = strides_of(args.dout.view);
  return made;
}

bool attention_by_cudnn(const Stream& stream, const AttentionArgs& args) {
  const std::optional<CudnnAttention> a = cudnn_attention(args);
  if (!a || !has_attention()) return false;
  const Numbers numbers(args.scale, a->sizes);
  std::vector<dnn::Operand> operands{{kQ, args.q.view.data},
                                     {kK, args.k.view.data},
                                     {kV, args.v.view.data},
                                     {kOut, args.out.view.data},
                                     {kLse, args.lse.view.data}};
  numbers.add_to(operands, *a);
  return enqueue_cudnn(stream, {.op = AttentionArgs::kName,
                                .name = "attention by cuDNN",
                                .tensor_core_name = "attention by cuDNN",
                                .key = a->key(),
                                .family = a->family(),
                                .weight = 5,  // 184 KB
                                .request = a->request(),
                                .operands = operands});
}

bool attention_grad_by_cudnn(const Stream& stream, const AttentionGradArgs& args) {
  // Blackwell's engines (10.x and 11.x) need more than the slopes' order for sums that are the same each time.
  const auto ordered = [](int major) { return major != 10 && major != 11; };
  std::optional<CudnnAttention> a = cudnn_attention(args);
  if (!a || !has_attention() || !ordered(lockstep::cuda::compute_capability_major(stream.device()))) return false;
  const std::optional<Division> division = divide(*a);
  if (!division) return false;
  const AttentionSizes whole = a->sizes;
  const std::int64_t group = whole.heads / whole.kv_heads;
  a->sizes.batch = division->batch, a->sizes.kv_heads = division->kv_heads;
  a->sizes.heads = group * division->kv_heads;
  const Workspace delta(stream,
                        static_cast<std::size_t>(a->sizes.batch * a->sizes.heads * whole.queries) * sizeof(float));
  const Numbers numbers(args.scale, whole);
  for (std::int64_t b = 0; b < whole.batch; b += division->batch)
    for (std::int64_t g = 0; g < whole.kv_heads; g += division->kv_heads) {
      const std::int64_t h = g * group;
      std::vector<dnn::Operand> operands{{kQ, part(args.q.view, b, h)},       {kK, part(args.k.view, b, g)},
                                         {kV, part(args.v.view, b, g)},       {kOut, part(args.out.view, b, h)},
                                         {kDout, part(args.dout.view, b, h)}, {kLse, part(args.lse.view, b, h)},
                                         {kDq, part(args.dq.view, b, h)},     {kDk, part(args.dk.view, b, g)},
                                         {kDv, part(args.dv.view, b, g)},     {kDelta, delta.data()}};
      numbers.add_to(operands, *a);
      if (!enqueue_cudnn(stream, {.op = AttentionGradArgs::kName,
                                  .name = "attention_grad by cuDNN",
                                  .tensor_core_name = "attention_grad by cuDNN",
                                  .key = a->key(),
                                  .family = {},
                                  .weight = 13,  // 527 KB
                                  .request = a->request(),
                                  .operands = operands}))
        return false;
    }
  return true;
}

}  // namespace lockstep::kernels::cuda
