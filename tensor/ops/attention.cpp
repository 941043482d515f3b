#include <cmath>
#include <limits>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

constexpr const char* kName = "scaled_dot_product_attention";

// What does not take part in the graph.
struct Settings {
  double scale;
  bool causal;
  CausalVariant variant;
  AttentionDropout dropout;
};

// What the formula computes with: heads of k and v for each of q, and zeros for keys behind the end of a sequence, of
// which nothing must be felt, not even a NaN.
struct Formula {
  const Tensor &q, &mask;
  const Settings& settings;
  Tensor k, v;
  Tensor ends;  // i64 [B, 1, 1, 1]: the lengths; undefined: all keys

  Formula(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& mask_, const Tensor& seqlens_k,
          const Settings& s)
      : q(q_), mask(mask_), settings(s), k(k_), v(v_) {
    const std::int64_t keys = k.size(2), group = k.size(1) > 0 ? q.size(1) / k.size(1) : 1;
    const TensorOptions options{.device = q.device()};
    if (seqlens_k.defined()) {
      // The selection refuses lengths that cannot be.
      ends = index_select(arange(keys + 1, options), 0, seqlens_k.to(DType::i64)).reshape({-1, 1, 1, 1});
      const Tensor there = arange(keys, options).unsqueeze(1) < ends;
      k = where(there, k, 0.0), v = where(there, v, 0.0);
    }
    if (group > 1) k = repeat_interleave(k, group, 1), v = repeat_interleave(v, group, 1);
  }

  // bool, broadcasts to the scores: which keys a query sees. Undefined: all.
  Tensor seen() const {
    const NoGrad no_grad;
    Tensor result;
    const auto also = [&](const Tensor& x) { result = result.defined() ? logical_and(result, x) : x; };
    if (mask.defined())
      also(mask.dtype() == DType::boolean ? mask : gt(mask, -std::numeric_limits<double>::infinity()));
    const TensorOptions options{.device = q.device()};
    const Tensor places = arange(k.size(2), options);
    if (ends.defined()) also(places < ends);
    if (settings.causal) {
      Tensor last = arange(q.size(2), options).unsqueeze(1);
      if (settings.variant == CausalVariant::lower_right)
        last = ends.defined() ? last + ends - q.size(2) : last + (k.size(2) - q.size(2));
      also(last >= places);
    }
    return result;
  }

  // softmax(scale * q @ k^T + mask) [B, H, T, S], of differentiable operations. Zeros for a query without a key.
  Tensor probabilities() const {
    Tensor scores = matmul(q, k.transpose(2, 3)) * settings.scale;
    const Tensor sees = seen();
    if (mask.defined() && mask.dtype() != DType::boolean) scores = scores + where(sees, mask, 0.0);
    if (!sees.defined()) return softmax(scores, -1);
    // A finite number, so that a row of nothing else has no NaN.
    return where(sees, softmax(where(sees, scores, q.dtype() == DType::f16 ? -6e4 : -3e38), -1), 0.0);
  }

  // A gradient of k or v as the formula has them, for the heads that there are.
  static Tensor for_heads(const Tensor& grad, std::int64_t heads) {
    if (grad.size(1) == heads) return grad;
    return grad.reshape({grad.size(0), heads, grad.size(1) / heads, grad.size(2), grad.size(3)}).sum({2});
  }
};

// What the kernel multiplies the probabilities with; undefined without dropout.
Tensor dropout_factors(const Tensor& q, const Tensor& k, const AttentionDropout& dropout) {
  if (dropout.p == 0) return {};
  const NoGrad no_grad;
  Tensor factors = detail::fresh({q.size(0), q.size(1), q.size(2), k.size(2)}, q.dtype(), q.device());
  if (factors.count() > 0)
    detail::launch(q.device(), RandomArgs{RandomKind::bernoulli, factors.out(), dropout.key, dropout.stream,
                                          1 - dropout.p, 0, dropout.replayed});
  return dropout.p < 1 ? factors * (1 / (1 - dropout.p)) : factors;
}

Tensor dropped(const Tensor& x, const Tensor& factors) { return factors.defined() ? x * factors : x; }

class AttentionNode final : public NodeOf<3> {
 public:
  const char* name() const override { return kName; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], grad_inputs);
    const Tensor query = q.get(*this), key = k.get(*this), value = v.get(*this), bias = mask.get(*this),
                 lengths = seqlens_k.get(*this);
    Tensor dq, dk, dv;
    if (needs(0)) dq = detail::fresh(query.shape(), query.dtype(), query.device());
    if (needs(1)) dk = detail::fresh(key.shape(), key.dtype(), key.device());
    if (needs(2)) dv = detail::fresh(value.shape(), value.dtype(), value.device());
    detail::launch(query.device(), AttentionGradArgs{.dout = grad_outputs[0].in(),
                                                     .q = query.in(),
                                                     .k = key.in(),
                                                     .v = value.in(),
                                                     .mask = bias.in(),
                                                     .seqlens_k = lengths.in(),
                                                     .out = out.get(*this).in(),
                                                     .lse = lse.get(*this).in(),
                                                     .dq = dq.out(),
                                                     .dk = dk.out(),
                                                     .dv = dv.out(),
                                                     .scale = settings.scale,
                                                     .causal = settings.causal,
                                                     .variant = settings.variant,
                                                     .dropout = settings.dropout});
    grad_inputs[0] = dq, grad_inputs[1] = dk, grad_inputs[2] = dv;
  }

  void backward_differentiably(const Tensor& dy, std::span<Tensor> grad_inputs) {
    const Tensor query = q.get(*this), bias = mask.get(*this);
    const Formula f(query, k.get(*this), v.get(*this), bias, seqlens_k.get(*this), settings);
    const Tensor p = f.probabilities(), factors = dropout_factors(query, f.k, settings.dropout);
    const std::int64_t heads = k.get(*this).size(1);
    if (needs(2)) grad_inputs[2] = Formula::for_heads(matmul(dropped(p, factors).transpose(2, 3), dy), heads);
    const Tensor dp = dropped(matmul(dy, f.v.transpose(2, 3)), factors);
    const Tensor ds = p * (dp - (dp * p).sum({-1}, true)) * settings.scale;
    if (needs(0)) grad_inputs[0] = matmul(ds, f.k);
    if (needs(1)) grad_inputs[1] = Formula::for_heads(matmul(ds.transpose(2, 3), query), heads);
  }

  Saved q{*this}, k{*this}, v{*this}, mask{*this}, seqlens_k{*this}, out{*this}, lse{*this};
  Settings settings;
};

// An optional operand of integers.
void check_integers(const char* what, const Tensor& x, const Tensor& q) {
  detail::check_same_device(kName, q, x);
  LOCKSTEP_CHECK(x.dtype() == DType::i32 || x.dtype() == DType::i64, "[", kName, "] expected a ", what,
                 " of i32 or i64, got ", x);
}

// The number of keys that there may be.
std::int64_t check_keys(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  const Tensor& table = options.block_table;
  const bool paged = table.defined();
  const auto fits = [&] {
    if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) return false;
    for (const int dim : {0, 1, 2})
      if (k.shape()[dim] != v.shape()[dim]) return false;
    if (!paged && k.shape()[0] != q.shape()[0]) return false;
    return k.shape()[3] == q.shape()[3] && (options.enable_gqa || k.shape()[1] == q.shape()[1]);
  };
  const bool fewer = q.rank() == 4 && k.rank() == 4 && !options.enable_gqa && k.shape()[1] != q.shape()[1];
  const char *first = paged ? "P" : "B", *heads = options.enable_gqa ? "G" : "H", *rows = paged ? "page" : "S";
  LOCKSTEP_CHECK(fits(), "[", kName, "] expected q [B, H, T, D], k [", first, ", ", heads, ", ", rows, ", D] and v [",
                 first, ", ", heads, ", ", rows, ", E]", fewer ? " (fewer heads of k and v: with enable_gqa)" : "",
                 ", got ", q, ", ", k, " and ", v);
  const std::int64_t query_heads = q.shape()[1], kv_heads = k.shape()[1];
  LOCKSTEP_CHECK(query_heads == kv_heads || (kv_heads > 0 && query_heads % kv_heads == 0), "[", kName,
                 "] expected heads of q that are a multiple of those of k and v, got ", query_heads, " of ", q, " and ",
                 kv_heads, " of ", k);
  if (!paged) return k.shape()[2];
  check_integers("block_table", table, q);
  LOCKSTEP_CHECK(table.rank() == 2 && table.shape()[0] == q.shape()[0], "[", kName,
                 "] expected a block_table [B, pages of a sequence] for ", q, ", got ", table);
  LOCKSTEP_CHECK(k.shape()[2] > 0, "[", kName, "] expected pages of at least one row, got ", k);
  LOCKSTEP_CHECK(!GradMode::enabled() || !(q.requires_grad() || k.requires_grad() || v.requires_grad()), "[", kName,
                 "] expected tensors that want no gradient beside a block_table, which has none, got ", q, ", ", k,
                 " and ", v);
  return table.shape()[1] * k.shape()[2];
}

// The shape of the scores.
Shape check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  detail::check_floating_alike(kName, q, k);
  detail::check_floating_alike(kName, q, v);
  const std::int64_t keys = check_keys(q, k, v, options);
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "[", kName, "] expected a probability, got ",
                 options.dropout);
  if (const Tensor& lengths = options.seqlens_k; lengths.defined()) {
    check_integers("seqlens_k", lengths, q);
    LOCKSTEP_CHECK(lengths.rank() == 1 && lengths.shape()[0] == q.shape()[0], "[", kName,
                   "] expected a seqlens_k [B] for ", q, ", got ", lengths);
  }
  const Shape scores{q.shape()[0], q.shape()[1], q.shape()[2], keys};
  const Tensor& mask = options.mask;
  if (!mask.defined()) return scores;
  detail::check_same_device(kName, q, mask);
  LOCKSTEP_CHECK(mask.dtype() == DType::boolean || mask.dtype() == q.dtype(), "[", kName,
                 "] expected a mask of bool or of the dtype of ", q, ", got ", mask);
  bool broadcasts = mask.rank() <= 4;
  for (int i = 1; broadcasts && i <= mask.rank(); ++i)
    broadcasts = mask.shape()[mask.rank() - i] == scores[4 - i] || mask.shape()[mask.rank() - i] == 1;
  LOCKSTEP_CHECK(broadcasts, "[", kName, "] expected a mask that broadcasts to ", scores, ", got ", mask);
  return scores;
}

Settings settings_of(const Tensor& q, const AttentionOptions& options) {
  Settings settings{
      options.scale.value_or(1 / std::sqrt(static_cast<double>(q.shape()[3]))), options.causal, options.variant, {}};
  if (options.dropout > 0) {
    const detail::RandomState state = detail::next_random(q.device());
    settings.dropout = {options.dropout, state.key, state.stream, state.replayed};
  }
  return settings;
}

// Calls `f` with dtypes as autocast wants them and with a dimension of heads, where one or the other is missing; false
// when all is as it should be.
template <class F>
bool adapted(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options, F&& f) {
  for (const Tensor* x : {&q, &k, &v}) detail::check_defined(kName, *x);
  if (detail::narrows(q, k, v, options.mask)) [[unlikely]] {
    AttentionOptions other = options;
    other.mask = detail::narrowed(options.mask);
    f(detail::narrowed(q), detail::narrowed(k), detail::narrowed(v), other, false);
    return true;
  }
  if (q.rank() != 3 || k.rank() != 3 || v.rank() != 3 || options.block_table.defined()) return false;
  AttentionOptions other = options;
  if (options.mask.defined() && options.mask.rank() == 3) other.mask = options.mask.unsqueeze(1);
  f(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), other, true);
  return true;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  Tensor result;
  const auto again = [&](const Tensor& q2, const Tensor& k2, const Tensor& v2, const AttentionOptions& o,
                         bool one_head) {
    result = scaled_dot_product_attention(q2, k2, v2, o);
    if (one_head) result = result.squeeze(1);
  };
  if (adapted(q, k, v, options, again)) return result;
  const Shape scores = check(q, k, v, options);
  const Settings settings = settings_of(q, options);
  if (GradMode::enabled() && options.mask.requires_grad()) {
    LOCKSTEP_CHECK(!options.block_table.defined(), "[", kName,
                   "] expected a mask that wants no gradient beside a block_table, which has none, got ", options.mask);
    const Formula f(q, k, v, options.mask, options.seqlens_k, settings);
    return matmul(dropped(f.probabilities(), dropout_factors(q, f.k, settings.dropout)), f.v);
  }

  const Shape rows{scores[0], scores[1], scores[2]};
  const Tensor mask = options.mask.defined() ? options.mask.detach().expand(scores) : Tensor();
  Tensor y = detail::fresh({rows[0], rows[1], rows[2], v.shape()[3]}, q.dtype(), q.device());
  Tensor lse = detail::fresh(rows, q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device());
  detail::launch(q.device(), AttentionArgs{.q = q.in(),
                                           .k = k.in(),
                                           .v = v.in(),
                                           .mask = mask.in(),
                                           .seqlens_k = options.seqlens_k.in(),
                                           .block_table = options.block_table.in(),
                                           .out = y.out(),
                                           .lse = lse.out(),
                                           .scale = settings.scale,
                                           .causal = settings.causal,
                                           .variant = settings.variant,
                                           .dropout = settings.dropout});
  if (auto* node = record<AttentionNode>(y, q, k, v)) {
    node->q.save(q);
    node->k.save(k);
    node->v.save(v);
    node->mask.save(mask);
    node->seqlens_k.save(options.seqlens_k);
    node->out.save_output(y);
    node->lse.save(lse);
    node->settings = settings;
  }
  return y;
}

AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options) {
  AttentionResult result;
  const auto again = [&](const Tensor& q2, const Tensor& k2, const Tensor& v2, const AttentionOptions& o,
                         bool one_head) {
    result = attention_with_weights(q2, k2, v2, o);
    if (one_head) result = {result.output.squeeze(1), result.weights.squeeze(1)};
  };
  if (adapted(q, k, v, options, again)) return result;
  LOCKSTEP_CHECK(!options.block_table.defined(),
                 "[attention_with_weights] expected keys and values without a block_table, got ", options.block_table);
  check(q, k, v, options);
  const Settings settings = settings_of(q, options);
  const Formula f(q, k, v, options.mask, options.seqlens_k, settings);
  result.weights = dropped(f.probabilities(), dropout_factors(q, f.k, settings.dropout)).to(q.dtype());
  result.output = matmul(result.weights, f.v);
  return result;
}

}  // namespace lockstep
