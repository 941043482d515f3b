// Convolution and its two adjoints. The three are bilinear and close under differentiation: the derivative of each is
// made of the others, so that any order of derivative comes for free.
#include <algorithm>
#include <limits>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/prepared_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// What the three nodes have in common: the two factors, and how they were combined.
template <std::size_t Inputs>
class ConvNode : public NodeOf<Inputs> {
 public:
  Saved first{*this}, second{*this};
  Shape first_shape, second_shape;
  MemoryFormat first_format, second_format;
  ConvGeometry geometry;
};

// The gradient of a factor has the factor's format.
Tensor grad_input(const Tensor& gradient, const Tensor& weight, const Shape& input_shape, const ConvGeometry& geometry,
                  MemoryFormat format) {
  return detail::in_format(conv2d_grad_input(gradient, weight, input_shape, geometry), format);
}
Tensor grad_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_shape, const ConvGeometry& geometry,
                   MemoryFormat format);

class Conv2dNode final : public ConvNode<3> {  // of x and weight
 public:
  const char* name() const override { return "conv2d"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor& dy = grad_outputs[0];
    if (needs(0)) grad_inputs[0] = grad_input(dy, second.get(*this), first_shape, geometry, first_format);
    if (needs(1)) grad_inputs[1] = grad_weight(dy, first.get(*this), second_shape, geometry, second_format);
    if (needs(2)) grad_inputs[2] = dy.sum({0, 2, 3});
  }
};

class Conv2dGradInputNode final : public ConvNode<2> {  // of dy and weight
 public:
  const char* name() const override { return "conv2d_grad_input"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor& dx = grad_outputs[0];
    if (needs(0)) grad_inputs[0] = detail::in_format(conv2d(dx, second.get(*this), {}, geometry), first_format);
    if (needs(1)) grad_inputs[1] = grad_weight(first.get(*this), dx, second_shape, geometry, second_format);
  }
};

class Conv2dGradWeightNode final : public ConvNode<2> {  // of dy and x
 public:
  const char* name() const override { return "conv2d_grad_weight"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor& dw = grad_outputs[0];
    if (needs(0)) grad_inputs[0] = detail::in_format(conv2d(second.get(*this), dw, {}, geometry), first_format);
    if (needs(1)) grad_inputs[1] = grad_input(first.get(*this), dw, second_shape, geometry, second_format);
  }
};

template <class N>
void save_for_backward(N* node, const Tensor& first, const Tensor& second, const ConvGeometry& geometry) {
  if (!node) return;
  if (node->needs(1)) node->first.save(first);
  if (node->needs(0)) node->second.save(second);
  node->first_shape = first.shape();
  node->second_shape = second.shape();
  node->first_format = first.memory_format();
  node->second_format = second.memory_format();
  node->geometry = geometry;
}

// The size of the result along one dimension; less than 1 when the kernel does not fit.
std::int64_t positions(std::int64_t size, std::int64_t kernel, int stride, int padding, int dilation) {
  const std::int64_t room = size + 2 * std::int64_t{padding} - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// The shape of conv2d(x, weight); throws unless everything fits.
Shape output_shape(const char* op, const std::string& x_text, const Shape& x, const std::string& weight_text,
                   const Shape& weight, const ConvGeometry& g) {
  LOCKSTEP_CHECK(g.stride.height > 0 && g.stride.width > 0 && g.dilation.height > 0 && g.dilation.width > 0 &&
                     g.padding.height >= 0 && g.padding.width >= 0 && g.groups > 0,
                 "[", op, "] expected stride, dilation and groups of at least 1 and padding of at least 0, got stride ",
                 g.stride, ", dilation ", g.dilation, ", groups ", g.groups, ", padding ", g.padding);
  LOCKSTEP_CHECK(
      x.rank() == 4 && weight.rank() == 4, "[", op,
      "] expected an input [batch, channels, height, width] and a weight [out, in / groups, height, width], got ",
      x_text, " and ", weight_text);
  LOCKSTEP_CHECK(x[1] == weight[1] * g.groups && weight[0] % g.groups == 0, "[", op,
                 "] expected an input with in channels and a weight [out, in / groups, ..] for ", g.groups,
                 " groups, got ", x_text, " and ", weight_text);
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  LOCKSTEP_CHECK(weight[2] > 0 && weight[3] > 0 && weight[2] <= kLargest && weight[3] <= kLargest, "[", op,
                 "] expected a kernel of at least 1x1, got ", weight_text);
  const std::int64_t height = positions(x[2], weight[2], g.stride.height, g.padding.height, g.dilation.height);
  const std::int64_t width = positions(x[3], weight[3], g.stride.width, g.padding.width, g.dilation.width);
  LOCKSTEP_CHECK(height > 0 && width > 0, "[", op, "] expected a kernel that fits into the padded input, got ", x_text,
                 " and ", weight_text, " with padding ", g.padding, " and dilation ", g.dilation);
  return {x[0], weight[0], height, width};
}

Window2d window_of(const Shape& weight, const ConvGeometry& g) {
  return {{static_cast<int>(weight[2]), static_cast<int>(weight[3])},
          {g.stride.height, g.stride.width},
          {g.padding.height, g.padding.width},
          {g.dilation.height, g.dilation.width}};
}

// channels_last where a factor is.
MemoryFormat conv_format(const Tensor& a, const Tensor& b) {
  return a.memory_format() == MemoryFormat::channels_last ? a.memory_format() : b.memory_format();
}

// As kernels of its device take it.
Tensor kernel_weight(const Tensor& weight) {
  return weight.contiguous(detail::kernel_format(weight, weight.memory_format()));
}

void check_gradient(const char* op, const Tensor& gradient, const Shape& expected) {
  LOCKSTEP_CHECK(gradient.shape() == expected, "[", op, "] expected a gradient ", expected, ", got ", gradient);
}

}  // namespace

std::string to_string(Size2 size) { return cat(size.height, 'x', size.width); }

Shape detail::conv2d_shape(const Tensor& x, const Tensor& weight, const ConvGeometry& geometry) {
  return output_shape("conv2d", x.describe(), x.shape(), weight.describe(), weight.shape(), geometry);
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& geometry) {
  return detail::conv2d(x, weight, bias, geometry, false, nullptr);
}

Tensor detail::conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& geometry,
                      bool with_relu, const std::shared_ptr<PackedWeights>& packed) {
  if (detail::narrows(x, weight, bias)) [[unlikely]]
    return conv2d(detail::narrowed(x), detail::narrowed(weight), detail::narrowed(bias), geometry, with_relu, nullptr);
  detail::check_floating_alike("conv2d", x, weight);
  const Shape shape = output_shape("conv2d", x.describe(), x.shape(), weight.describe(), weight.shape(), geometry);
  if (bias.defined()) {
    detail::check_floating_alike("conv2d", x, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{shape[1]}, "[conv2d] expected a bias [", shape[1], "] for the weight ", weight,
                   ", got ", bias);
  }
  const MemoryFormat format = conv_format(x, weight), inner = detail::kernel_format(x, format);
  const Tensor input = x.contiguous(inner), filters = kernel_weight(weight),
               offset = bias.defined() ? bias.contiguous() : bias;
  Tensor y = detail::fresh(shape, x.dtype(), x.device(), inner);
  detail::launch(x.device(), Conv2dArgs{input.in(), filters.in(), offset.in(), y.out(),
                                        window_of(weight.shape(), geometry), geometry.groups, with_relu, packed});
  save_for_backward(record<Conv2dNode>(y, input, filters, offset), input, filters, geometry);
  return y.to(format);
}

Tensor conv2d_grad_input(const Tensor& gradient, const Tensor& weight, const Shape& input_shape,
                         const ConvGeometry& geometry) {
  detail::check_floating_alike("conv2d_grad_input", gradient, weight);
  check_gradient("conv2d_grad_input", gradient,
                 output_shape("conv2d_grad_input", to_string(input_shape), input_shape, weight.describe(),
                              weight.shape(), geometry));
  const MemoryFormat format = conv_format(gradient, weight), inner = detail::kernel_format(gradient, format);
  const Tensor dy = gradient.contiguous(inner), filters = kernel_weight(weight);
  Tensor dx = detail::fresh(input_shape, gradient.dtype(), gradient.device(), inner);
  detail::launch(dy.device(), Conv2dGradInputArgs{dy.in(), filters.in(), dx.out(), window_of(weight.shape(), geometry),
                                                  geometry.groups});
  save_for_backward(record<Conv2dGradInputNode>(dx, dy, filters), dy, filters, geometry);
  return dx.to(format);
}

Tensor conv2d_grad_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_shape,
                          const ConvGeometry& geometry) {
  return grad_weight(gradient, x, weight_shape, geometry, MemoryFormat::contiguous);
}

namespace {
Tensor grad_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_shape, const ConvGeometry& geometry,
                   MemoryFormat format) {
  detail::check_floating_alike("conv2d_grad_weight", gradient, x);
  check_gradient(
      "conv2d_grad_weight", gradient,
      output_shape("conv2d_grad_weight", x.describe(), x.shape(), to_string(weight_shape), weight_shape, geometry));
  const MemoryFormat inner = detail::kernel_format(x, conv_format(gradient, x));
  const Tensor dy = gradient.contiguous(inner), input = x.contiguous(inner);
  Tensor dw = detail::fresh(weight_shape, gradient.dtype(), gradient.device(), detail::kernel_format(x, format));
  detail::launch(dy.device(), Conv2dGradWeightArgs{dy.in(), input.in(), dw.out(), window_of(weight_shape, geometry),
                                                   geometry.groups});
  save_for_backward(record<Conv2dGradWeightNode>(dw, dy, input), dy, input, geometry);
  return dw.to(format);
}
}  // namespace

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeGeometry& g) {
  if (detail::narrows(x, weight, bias)) [[unlikely]]
    return conv_transpose2d(detail::narrowed(x), detail::narrowed(weight), detail::narrowed(bias), g);
  constexpr const char* kOp = "conv_transpose2d";
  detail::check_floating_alike(kOp, x, weight);
  LOCKSTEP_CHECK(g.stride.height > 0 && g.stride.width > 0 && g.dilation.height > 0 && g.dilation.width > 0 &&
                     g.padding.height >= 0 && g.padding.width >= 0 && g.groups > 0,
                 "[", kOp,
                 "] expected stride, dilation and groups of at least 1 and padding of at least 0, got stride ",
                 g.stride, ", dilation ", g.dilation, ", groups ", g.groups, ", padding ", g.padding);
  const auto fits = [](int extra, int stride, int dilation) {
    return extra >= 0 && extra < std::max(stride, dilation);
  };
  LOCKSTEP_CHECK(fits(g.output_padding.height, g.stride.height, g.dilation.height) &&
                     fits(g.output_padding.width, g.stride.width, g.dilation.width),
                 "[", kOp, "] expected an output padding below the stride or the dilation, got ", g.output_padding,
                 " with stride ", g.stride, " and dilation ", g.dilation);
  LOCKSTEP_CHECK(
      x.rank() == 4 && weight.rank() == 4 && x.shape()[1] == weight.shape()[0] && weight.shape()[0] % g.groups == 0,
      "[", kOp, "] expected an input [batch, in, height, width] and a weight [in, out / groups, height, width] for ",
      g.groups, " groups, got ", x, " and ", weight);
  const std::int64_t outputs = weight.shape()[1] * g.groups;
  if (bias.defined()) {
    detail::check_floating_alike(kOp, x, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{outputs}, "[", kOp, "] expected a bias [", outputs, "] for the weight ",
                   weight, ", got ", bias);
  }
  Shape shape = x.shape();
  shape[1] = outputs;
  Tensor in = x;
  const auto enlarge = [&](int dim, int stride, int padding, int dilation, int extra) {
    shape[dim] =
        (x.shape()[dim] - 1) * stride - 2 * std::int64_t{padding} + dilation * (weight.shape()[dim] - 1) + extra + 1;
    LOCKSTEP_CHECK(x.shape()[dim] > 0 && weight.shape()[dim] > 0 && shape[dim] > 0, "[", kOp,
                   "] expected sizes that give a result of at least 1x1, got ", x, " and ", weight, " with padding ",
                   g.padding);
    // So many more steps of the stride find room in the result; the convolution that this is the adjoint of has them.
    if (extra >= stride) in = pad(in, dim, 0, extra / stride);
  };
  enlarge(2, g.stride.height, g.padding.height, g.dilation.height, g.output_padding.height);
  enlarge(3, g.stride.width, g.padding.width, g.dilation.width, g.output_padding.width);
  Tensor y = conv2d_grad_input(in, weight, shape, {g.stride, g.padding, g.dilation, g.groups});
  if (bias.defined()) y.add_(bias.reshape({-1, 1, 1}));
  return y;
}

}  // namespace lockstep
