// One kernel forward and one backward; under create_graph the derivative is built from differentiable operations
// instead.
#include "lockstep/tensor/ops/group_norm.h"

#include <algorithm>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// Images of [batch, groups, channels, length] as the kernel sees them. A tensor that lies in the format may not say so:
// strides of dimensions of size 1 are anything.
View of_groups(const Tensor& x, const Shape& groups, MemoryFormat format) {
  View view = detail::view_reshaped(x, groups);
  if (format == MemoryFormat::channels_last) {
    const std::int64_t channels = groups[1] * groups[2];
    view.strides = {channels * groups[3], groups[2], 1, channels};
  }
  return view;
}

class GroupNormNode final : public NodeOf<3> {
 public:
  const char* name() const override { return op; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor in = x.get(*this), scale = weight.get(*this);
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], in, scale, grad_inputs);
    const MemoryFormat format = in.memory_format();
    const Tensor dy = grad_outputs[0].contiguous(format);
    Tensor dx = detail::fresh_like(in), dweight, dbias;
    if (needs(1)) dweight = detail::fresh(parameters, in.dtype(), in.device());
    if (needs(2)) dbias = detail::fresh(parameters, in.dtype(), in.device());
    detail::launch(in.device(), GroupNormGradArgs{In{of_groups(dy, groups, format)}, In{of_groups(in, groups, format)},
                                                  scale.in(), mean.get(*this).in(), inv_std.get(*this).in(),
                                                  Out{of_groups(dx, groups, format)}, dweight.out(), dbias.out()});
    grad_inputs[0] = dx;
    grad_inputs[1] = dweight;
    grad_inputs[2] = dbias;
  }

  void backward_differentiably(const Tensor& gradient, const Tensor& in, const Tensor& scale,
                               std::span<Tensor> grad_inputs) {
    const Dims row{2, 3}, others{0, 3};
    const Tensor dy = gradient.reshape(groups), all = in.reshape(groups);
    const Tensor centred = all - all.mean(row, true);
    const Tensor inverse = rsqrt(square(centred).mean(row, true) + eps);
    const Tensor normal = centred * inverse;
    if (needs(0)) {
      const Tensor g = scale.defined() ? dy * scale.reshape({groups[1], groups[2], 1}) : dy;
      grad_inputs[0] = ((g - g.mean(row, true) - normal * (g * normal).mean(row, true)) * inverse).reshape(in.shape());
    }
    if (needs(1)) grad_inputs[1] = (dy * normal).sum(others).reshape(parameters);
    if (needs(2)) grad_inputs[2] = dy.sum(others).reshape(parameters);
  }

  const char* op = nullptr;
  Saved x{*this}, weight{*this}, mean{*this}, inv_std{*this};
  Shape groups;      // [batch, groups, channels, length]
  Shape parameters;  // of weight and bias
  double eps = 0;
};

}  // namespace

void detail::check_affine(const char* op, const Tensor& x, const Shape& parameters, const Tensor& weight,
                          const Tensor& bias) {
  for (const Tensor& affine : {weight, bias}) {
    if (!affine.defined()) continue;
    detail::check_floating_alike(op, x, affine);
    LOCKSTEP_CHECK(affine.shape() == parameters, "[", op, "] expected parameters ", parameters, ", got ", affine);
  }
}

Tensor detail::normalize_groups(const char* op, const Tensor& x, const Shape& groups, const Shape& parameters,
                                const Tensor& weight, const Tensor& bias, double eps, MemoryFormat format) {
  check_affine(op, x, parameters, weight, bias);
  const Tensor in = x.contiguous(format);
  const Tensor scale = weight.defined() ? weight.contiguous() : weight,
               shift = bias.defined() ? bias.contiguous() : bias;
  Tensor y = detail::fresh_like(in), mean, inv_std;
  auto* node = record<GroupNormNode>(y, in, scale, shift);
  if (node) {
    const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
    mean = detail::fresh({groups[0], groups[1]}, dtype, x.device());
    inv_std = detail::fresh({groups[0], groups[1]}, dtype, x.device());
  }
  detail::launch(x.device(),
                 GroupNormArgs{In{of_groups(in, groups, in.memory_format())}, scale.in(), shift.in(),
                               Out{of_groups(y, groups, in.memory_format())}, mean.out(), inv_std.out(), eps});
  if (node) {
    node->op = op;
    node->x.save(in);
    node->weight.save(scale);
    node->mean.save(mean);
    node->inv_std.save(inv_std);
    node->groups = groups;
    node->parameters = parameters;
    node->eps = eps;
  }
  return detail::in_format(y, x.memory_format());
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  if (detail::widens(x, weight, bias)) [[unlikely]]
    return group_norm(detail::widened(x), groups, detail::widened(weight), detail::widened(bias), eps);
  detail::check_floating("group_norm", x);
  LOCKSTEP_CHECK(x.rank() >= 2 && groups > 0 && x.shape()[1] % groups == 0,
                 "[group_norm] expected an input [batch, channels, ..] with channels that ", groups,
                 " groups divide, got ", x);
  const std::int64_t batch = x.shape()[0], channels = x.shape()[1];
  const std::int64_t images = std::max<std::int64_t>(batch * channels, 1);
  const bool in_pixels = x.dtype() == DType::f32 && kernels::table(x.device().type()).normalizes_channels_last;
  return detail::normalize_groups("group_norm", x, {batch, groups, channels / groups, x.count() / images}, {channels},
                                  weight, bias, eps, in_pixels ? x.memory_format() : MemoryFormat::contiguous);
}

}  // namespace lockstep
