#include "lockstep/tensor/optim/clip.h"

#include <cmath>
#include <vector>

#include "lockstep/tensor/nn/shard.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/sparse_gradient.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {
// The elements of a gradient: all, or those of its rows.
struct Gradient {
  Parameter parameter;
  Tensor elements;
  Tensor indices;  // undefined: all
};

std::vector<Gradient> gradients_of(std::span<const Parameter> parameters) {
  std::vector<Gradient> gradients;
  for (const Parameter& parameter : parameters) {
    if (const SparseGradient rows = parameter.sparse_grad(); rows.defined())
      gradients.push_back({parameter, rows.values, rows.indices});
    else if (const Tensor gradient = parameter.grad(); gradient.defined())
      gradients.push_back({parameter, gradient, {}});
  }
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

namespace detail {

void check_clip(double max_norm, double norm_type) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] expected a norm of at least 0, got ", max_norm);
  LOCKSTEP_CHECK(norm_type > 0, "[clip_grad_norm] expected a norm_type above 0, got ", norm_type);
}

void check_norm(const Tensor& total, std::size_t parameters) {
  if (const double value = total.item<double>(); !std::isfinite(value))
    throw Error(
        cat("[clip_grad_norm] expected a finite norm of the gradients of ", parameters, " parameters, got ", value));
}

Tensor norm_of_norms(const Tensor& norms, double norm_type) { return norm_of(norms, norm_type); }

Tensor gradient_norm(std::span<const Parameter> parameters, double norm_type) {
  NoGrad no_grad;
  const std::vector<Gradient> gradients = gradients_of(parameters);
  if (gradients.empty()) return {};
  const Device device = gradients[0].elements.device();
  DType dtype = DType::f32;
  for (const Gradient& gradient : gradients) dtype = promote_types(dtype, gradient.elements.dtype());
  std::vector<Tensor> norms;
  // In the wider dtype from the start: the squares of 16-bit gradients overflow.
  for (const Gradient& gradient : gradients) {
    Tensor elements = gradient.elements.to(dtype);
    if (gradient.indices.defined())
      elements = detail::sum_rows({gradient.indices, elements, gradient.parameter.shape()}).values;
    norms.push_back(norm_of(elements, norm_type).to(device));
  }
  return norm_of(stack(norms), norm_type);
}

void scale_to_norm(std::span<const Parameter> parameters, const Tensor& total, double max_norm) {
  NoGrad no_grad;
  const std::vector<Gradient> gradients = gradients_of(parameters);
  // The small number keeps a norm of 0 from dividing by 0.
  const Tensor factor = clamp(max_norm / (total + 1e-6), 0, 1);
  std::vector<Tensor> factors;  // before the first gradient changes: these may need memory
  for (const Gradient& gradient : gradients)
    factors.push_back(factor.to(gradient.elements.device()).to(gradient.elements.dtype()));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Tensor elements = gradients[i].elements;
    elements.mul_(factors[i]);
  }
}

}  // namespace detail

Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm, const ClipNormOptions& options) {
  detail::check_clip(max_norm, options.norm_type);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    // Each rank would scale by another number: from then on their copies of what all have would differ.
    if (const Shard* shard = shard_of(parameters[i]); shard && shard->ranks > 1)
      throw InvalidArgument(cat("[clip_grad_norm] parameter ", i, ", ", parameters[i].shape(), ", is the part of rank ",
                                shard->rank, " of ", shard->ranks, ": expected ",
                                shard->dim == Shard::kElements
                                    ? "the wrapper's own, net.clip_grad_norm(max_norm)"
                                    : "the communicator of these ranks, clip_grad_norm(parameters, max_norm, ranks)"));
  }
  NoGrad no_grad;
  Tensor total = detail::gradient_norm(parameters, options.norm_type);
  if (!total.defined()) return zeros({});
  if (options.error_if_nonfinite) detail::check_norm(total, parameters.size());
  detail::scale_to_norm(parameters, total, max_norm);
  return total;
}

void clip_grad_value(std::span<const Parameter> parameters, double limit) {
  LOCKSTEP_CHECK(limit >= 0, "[clip_grad_value] expected a limit of at least 0, got ", limit);
  NoGrad no_grad;
  for (const Gradient& gradient : gradients_of(parameters)) {
    Tensor elements = gradient.elements;
    if (gradient.indices.defined()) {
      const SparseGradient sums = detail::sum_rows({gradient.indices, elements, gradient.parameter.shape()});
      gradient.parameter.set_sparse_grad(sums);
      elements = sums.values;
    }
    detail::launch(elements.device(), UnaryArgs{UnaryOp::clamp, elements.in(), elements.out(), -limit, limit});
    elements.mark_changed();
  }
}

}  // namespace lockstep
