#include "lockstep/tensor/optim/clip.h"

#include <cmath>
#include <vector>

#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_shape.h"
#include "lockstep/tensor/ops_support.h"

namespace lockstep {
namespace {
std::vector<Tensor> gradients_of(std::span<const Parameter> parameters) {
  std::vector<Tensor> gradients;
  for (const Parameter& parameter : parameters)
    if (Tensor gradient = parameter.grad(); gradient.defined()) gradients.push_back(std::move(gradient));
  return gradients;
}

Tensor norm_of(const Tensor& x, double type) {
  if (x.count() == 0) return zeros({}, {.dtype = x.dtype(), .device = x.device()});  // which has no largest element
  if (type == 2) return norm(x);
  const Tensor magnitudes = abs(x);
  if (std::isinf(type)) return max(magnitudes);
  if (type == 1) return sum(magnitudes);
  return pow(sum(pow(magnitudes, type)), 1 / type);
}
}  // namespace

Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm, const ClipNormOptions& options) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] expected a norm of at least 0, got ", max_norm);
  LOCKSTEP_CHECK(options.norm_type > 0, "[clip_grad_norm] expected a norm_type above 0, got ", options.norm_type);
  NoGrad no_grad;
  std::vector<Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return zeros({});
  const Device device = gradients[0].device();
  DType dtype = DType::f32;
  for (const Tensor& gradient : gradients) dtype = promote_types(dtype, gradient.dtype());
  std::vector<Tensor> norms;
  // In the wider dtype from the start: the squares of 16-bit gradients overflow.
  for (const Tensor& gradient : gradients) norms.push_back(norm_of(gradient.to(dtype), options.norm_type).to(device));
  const Tensor total = norm_of(stack(norms), options.norm_type);
  if (options.error_if_nonfinite)
    if (const double value = total.item<double>(); !std::isfinite(value))
      throw Error(cat("[clip_grad_norm] expected a finite norm of the gradients of ", parameters.size(),
                      " parameters, got ", value));
  // The small number keeps a norm of 0 from dividing by 0.
  const Tensor factor = clamp(max_norm / (total + 1e-6), 0, 1);
  for (Tensor& gradient : gradients) gradient.mul_(factor.to(gradient.device()).to(gradient.dtype()));
  return total;
}

void clip_grad_value(std::span<const Parameter> parameters, double limit) {
  LOCKSTEP_CHECK(limit >= 0, "[clip_grad_value] expected a limit of at least 0, got ", limit);
  NoGrad no_grad;
  for (const Tensor& gradient : gradients_of(parameters)) {
    detail::launch(gradient.device(), &KernelTable::unary,
                   UnaryArgs{UnaryOp::clamp, gradient.in(), gradient.out(), -limit, limit});
    gradient.mark_changed();
  }
}

}  // namespace lockstep
