// One kernel forward and one backward; under create_graph the derivative is built from differentiable operations
// instead.
#include <limits>
#include <optional>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/group_norm.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class RmsNormNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "rms_norm"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor in = x.get(*this), scale = weight.get(*this);
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], in, scale, grad_inputs);
    const Tensor dy = grad_outputs[0].contiguous();
    Tensor dx = detail::fresh_like(dy), dweight;
    if (needs(1)) dweight = detail::fresh(normalized, in.dtype(), in.device());
    detail::launch(in.device(),
                   RmsNormGradArgs{In{detail::view_reshaped(dy, rows)}, In{detail::view_reshaped(in, rows)}, scale.in(),
                                   inv_rms.get(*this).in(), Out{detail::view_reshaped(dx, rows)}, dweight.out()});
    grad_inputs[0] = dx;
    grad_inputs[1] = dweight;
  }

  void backward_differentiably(const Tensor& gradient, const Tensor& in, const Tensor& scale,
                               std::span<Tensor> grad_inputs) {
    const Tensor dy = gradient.reshape(rows), all = in.reshape(rows);
    const Tensor inverse = rsqrt(square(all).mean({1}, true) + eps);
    const Tensor normal = all * inverse;
    if (needs(0)) {
      const Tensor g = scale.defined() ? dy * scale.reshape({rows[1]}) : dy;
      grad_inputs[0] = ((g - normal * (g * normal).mean({1}, true)) * inverse).reshape(in.shape());
    }
    if (needs(1)) grad_inputs[1] = (dy * normal).sum({0}).reshape(normalized);
  }

  Saved x{*this}, weight{*this}, inv_rms{*this};
  Shape rows;        // [rows, size]
  Shape normalized;  // of weight
  double eps = 0;
};

// Of the dtype that the operation computes in.
double epsilon_of(DType dtype) {
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()};
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Shape& normalized, const Tensor& weight, std::optional<double> eps) {
  if (detail::widens(x, weight)) [[unlikely]]
    return rms_norm(detail::widened(x), normalized, detail::widened(weight), eps);
  const Shape rows = detail::normalized_rows("rms_norm", x, normalized);
  detail::check_affine("rms_norm", x, normalized, weight);
  const double added = eps.value_or(epsilon_of(x.dtype()));
  const Tensor in = x.contiguous(), scale = weight.defined() ? weight.contiguous() : weight;
  Tensor y = detail::fresh_like(in), inv_rms;
  auto* node = record<RmsNormNode>(y, in, scale);
  if (node) inv_rms = detail::fresh({rows[0]}, x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device());
  detail::launch(x.device(), RmsNormArgs{In{detail::view_reshaped(in, rows)}, scale.in(),
                                         Out{detail::view_reshaped(y, rows)}, inv_rms.out(), added});
  if (node) {
    node->x.save(in);
    node->weight.save(scale);
    node->inv_rms.save(inv_rms);
    node->rows = rows;
    node->normalized = normalized;
    node->eps = added;
  }
  return y;
}

}  // namespace lockstep
