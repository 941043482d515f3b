#include <cmath>
#include <limits>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

constexpr const char* kName = "scaled_dot_product_attention";

// What does not take part in the graph.
struct Settings {
  double scale;
  bool causal;
  AttentionDropout dropout;
};

// bool, broadcasts to the scores: which keys a query sees. Undefined: all.
Tensor seen_keys(const Tensor& q, const Tensor& k, const Tensor& mask, bool causal) {
  const NoGrad no_grad;
  Tensor seen;
  if (mask.defined()) seen = mask.dtype() == DType::boolean ? mask : gt(mask, -std::numeric_limits<double>::infinity());
  if (causal) {
    const TensorOptions options{.device = q.device()};
    const Tensor past = arange(q.size(2), options).unsqueeze(1) >= arange(k.size(2), options);
    seen = seen.defined() ? logical_and(seen, past) : past;
  }
  return seen;
}

// softmax(scale * q @ k^T + mask) [B, H, T, S], of differentiable operations. Zeros for a query without a key.
Tensor probabilities(const Tensor& q, const Tensor& k, const Tensor& mask, const Settings& s) {
  Tensor scores = matmul(q, k.transpose(2, 3)) * s.scale;
  const Tensor seen = seen_keys(q, k, mask, s.causal);
  if (mask.defined() && mask.dtype() != DType::boolean) scores = scores + where(seen, mask, 0.0);
  if (!seen.defined()) return softmax(scores, -1);
  // A finite number, so that a row of nothing else has no NaN.
  return where(seen, softmax(where(seen, scores, q.dtype() == DType::f16 ? -6e4 : -3e38), -1), 0.0);
}

// What the kernel multiplies the probabilities with; undefined without dropout.
Tensor dropout_factors(const Tensor& q, const Tensor& k, const AttentionDropout& dropout) {
  if (dropout.p == 0) return {};
  const NoGrad no_grad;
  Tensor factors = detail::fresh({q.size(0), q.size(1), q.size(2), k.size(2)}, q.dtype(), q.device());
  if (factors.count() > 0)
    detail::launch(q.device(),
                   RandomArgs{RandomKind::bernoulli, factors.out(), dropout.key, dropout.stream, 1 - dropout.p, 0});
  return dropout.p < 1 ? factors * (1 / (1 - dropout.p)) : factors;
}

Tensor dropped(const Tensor& x, const Tensor& factors) { return factors.defined() ? x * factors : x; }

class AttentionNode final : public NodeOf<3> {
 public:
  const char* name() const override { return kName; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], grad_inputs);
    const Tensor query = q.get(*this), key = k.get(*this), value = v.get(*this), bias = mask.get(*this);
    Tensor dq, dk, dv;
    if (needs(0)) dq = detail::fresh(query.shape(), query.dtype(), query.device());
    if (needs(1)) dk = detail::fresh(key.shape(), key.dtype(), key.device());
    if (needs(2)) dv = detail::fresh(value.shape(), value.dtype(), value.device());
    detail::launch(query.device(), AttentionGradArgs{grad_outputs[0].in(), query.in(), key.in(), value.in(), bias.in(),
                                                     out.get(*this).in(), lse.get(*this).in(), dq.out(), dk.out(),
                                                     dv.out(), settings.scale, settings.causal, settings.dropout});
    grad_inputs[0] = dq, grad_inputs[1] = dk, grad_inputs[2] = dv;
  }

  void backward_differentiably(const Tensor& dy, std::span<Tensor> grad_inputs) {
    const Tensor query = q.get(*this), key = k.get(*this), value = v.get(*this);
    const Tensor p = probabilities(query, key, mask.get(*this), settings);
    const Tensor factors = dropout_factors(query, key, settings.dropout);
    if (needs(2)) grad_inputs[2] = matmul(dropped(p, factors).transpose(2, 3), dy);
    const Tensor dp = dropped(matmul(dy, value.transpose(2, 3)), factors);
    const Tensor ds = p * (dp - (dp * p).sum({-1}, true)) * settings.scale;
    if (needs(0)) grad_inputs[0] = matmul(ds, key);
    if (needs(1)) grad_inputs[1] = matmul(ds.transpose(2, 3), query);
  }

  Saved q{*this}, k{*this}, v{*this}, mask{*this}, out{*this}, lse{*this};
  Settings settings;
};

void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  detail::check_floating_alike(kName, q, k);
  detail::check_floating_alike(kName, q, v);
  const auto fits = [&] {
    if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) return false;
    for (const int dim : {0, 1})
      if (k.shape()[dim] != q.shape()[dim] || v.shape()[dim] != q.shape()[dim]) return false;
    return k.shape()[3] == q.shape()[3] && v.shape()[2] == k.shape()[2];
  };
  LOCKSTEP_CHECK(fits(), "[", kName, "] expected q [B, H, T, D], k [B, H, S, D] and v [B, H, S, E], got ", q, ", ", k,
                 " and ", v);
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "[", kName, "] expected a probability, got ",
                 options.dropout);
  const Tensor& mask = options.mask;
  if (!mask.defined()) return;
  detail::check_same_device(kName, q, mask);
  LOCKSTEP_CHECK(mask.dtype() == DType::boolean || mask.dtype() == q.dtype(), "[", kName,
                 "] expected a mask of bool or of the dtype of ", q, ", got ", mask);
  const Shape scores{q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]};
  bool broadcasts = mask.rank() <= 4;
  for (int i = 1; broadcasts && i <= mask.rank(); ++i)
    broadcasts = mask.shape()[mask.rank() - i] == scores[4 - i] || mask.shape()[mask.rank() - i] == 1;
  LOCKSTEP_CHECK(broadcasts, "[", kName, "] expected a mask that broadcasts to ", scores, ", got ", mask);
}

Settings settings_of(const Tensor& q, const AttentionOptions& options) {
  Settings settings{options.scale.value_or(1 / std::sqrt(static_cast<double>(q.shape()[3]))), options.causal, {}};
  if (options.dropout > 0) {
    const detail::RandomState state = detail::next_random();
    settings.dropout = {options.dropout, state.key, state.stream};
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
  if (q.rank() != 3 || k.rank() != 3 || v.rank() != 3) return false;
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
  check(q, k, v, options);
  const Settings settings = settings_of(q, options);
  if (GradMode::enabled() && options.mask.requires_grad())
    return matmul(dropped(probabilities(q, k, options.mask, settings), dropout_factors(q, k, settings.dropout)), v);

  const Shape rows{q.shape()[0], q.shape()[1], q.shape()[2]};
  const Tensor mask =
      options.mask.defined() ? options.mask.detach().expand({rows[0], rows[1], rows[2], k.shape()[2]}) : Tensor();
  Tensor y = detail::fresh({rows[0], rows[1], rows[2], v.shape()[3]}, q.dtype(), q.device());
  Tensor lse = detail::fresh(rows, q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device());
  detail::launch(q.device(), AttentionArgs{q.in(), k.in(), v.in(), mask.in(), y.out(), lse.out(), settings.scale,
                                           settings.causal, settings.dropout});
  if (auto* node = record<AttentionNode>(y, q, k, v)) {
    node->q.save(q);
    node->k.save(k);
    node->v.save(v);
    node->mask.save(mask);
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
  check(q, k, v, options);
  const Settings settings = settings_of(q, options);
  result.weights =
      dropped(probabilities(q, k, options.mask, settings), dropout_factors(q, k, settings.dropout)).to(q.dtype());
  result.output = matmul(result.weights, v);
  return result;
}

}  // namespace lockstep
