// Pooling. Of each pair, the operation and its adjoint differentiate into each other.
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// ---- max: with the positions of the maxima fixed, pooling is a selection and its adjoint a scattered sum

Tensor pick(const Tensor& plane, const Tensor& indices);
Tensor unpool(const Tensor& values, const Tensor& indices, const Shape& shape, MemoryFormat format);

class MaxPool2dNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "max_pool2d"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = detail::in_format(unpool(grad_outputs[0], indices.get(*this), shape, inner), format);
  }
  Saved indices{*this};
  Shape shape;                 // of x
  MemoryFormat format, inner;  // of x, and of the indices
};

class UnpoolNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "max_unpool2d"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = detail::in_format(pick(grad_outputs[0], indices.get(*this)), format);
  }
  Saved indices{*this};
  MemoryFormat format;
};

// values[n, c, i] added at position indices[n, c, i] of the plane of a zero tensor of `shape`.
// All are in `format`, one that the kernel takes.
Tensor unpool(const Tensor& values, const Tensor& indices, const Shape& shape, MemoryFormat format) {
  const Tensor in = values.contiguous(format);
  Tensor y = detail::fresh(shape, in.dtype(), in.device(), format);
  detail::launch(in.device(), MaxUnpool2dArgs{in.in(), indices.in(), y.out()});
  if (auto* node = record<UnpoolNode>(y, in)) node->indices.save(indices), node->format = format;
  return y;
}

Tensor pick(const Tensor& plane, const Tensor& indices) {
  return gather(plane.flatten(2), 2, indices.flatten(2)).reshape(indices.shape());
}

// ---- average: linear

struct Averages {
  Window2d window;
  PoolMean mean;
  MemoryFormat format;  // of both sides
};
Tensor average(const Tensor& x, const Averages& averages, const Shape& shape);

class AvgPool2dGradNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "avg_pool2d_grad"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = average(grad_outputs[0], averages, shape);
  }
  Averages averages;
  Shape shape;  // of the pooled side
};

Tensor spread(const Tensor& gradient, const Averages& averages, const Shape& shape) {
  const MemoryFormat inner = detail::kernel_format(gradient, averages.format);
  const Tensor dy = gradient.contiguous(inner);
  Tensor dx = detail::fresh(shape, dy.dtype(), dy.device(), inner);
  detail::launch(dy.device(), AvgPool2dGradArgs{dy.in(), dx.out(), averages.window, averages.mean});
  if (auto* node = record<AvgPool2dGradNode>(dx, dy)) node->averages = averages, node->shape = dy.shape();
  return dx.to(averages.format);
}

class AvgPool2dNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "avg_pool2d"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = spread(grad_outputs[0], averages, shape);
  }
  Averages averages;
  Shape shape;  // of x
};

Tensor average(const Tensor& x, const Averages& averages, const Shape& shape) {
  const MemoryFormat inner = detail::kernel_format(x, averages.format);
  const Tensor in = x.contiguous(inner);
  Tensor y = detail::fresh(shape, in.dtype(), in.device(), inner);
  detail::launch(in.device(), AvgPool2dArgs{in.in(), y.out(), averages.window, averages.mean});
  if (auto* node = record<AvgPool2dNode>(y, in)) node->averages = averages, node->shape = in.shape();
  return y.to(averages.format);
}

// ---- checks

Window2d window_of(const char* op, const Tensor& x, Size2 kernel, const PoolGeometry& g, Shape& shape) {
  detail::check_floating(op, x);
  const Size2 stride = g.stride.value_or(kernel);
  LOCKSTEP_CHECK(kernel.height > 0 && kernel.width > 0 && stride.height > 0 && stride.width > 0 &&
                     g.dilation.height > 0 && g.dilation.width > 0,
                 "[", op, "] expected kernel, stride and dilation of at least 1, got kernel ", kernel, ", stride ",
                 stride, ", dilation ", g.dilation);
  LOCKSTEP_CHECK(g.padding.height >= 0 && g.padding.width >= 0 && g.padding.height <= kernel.height / 2 &&
                     g.padding.width <= kernel.width / 2,
                 "[", op, "] expected padding of at most half the kernel, got ", g.padding, " for the kernel ", kernel);
  LOCKSTEP_CHECK(x.rank() == 4, "[", op, "] expected an input [batch, channels, height, width], got ", x);
  const auto positions = [&](std::int64_t size, std::int64_t window, int step, int padding, int dilation) {
    const std::int64_t room = size + 2 * std::int64_t{padding} - dilation * (window - 1) - 1;
    LOCKSTEP_CHECK(size > 0 && room > (g.ceil_mode ? -step : -1), "[", op,
                   "] expected a kernel that fits into the padded input, got the kernel ", kernel, " with padding ",
                   g.padding, " and dilation ", g.dilation, " for ", x);
    if (!g.ceil_mode) return room / step + 1;
    const std::int64_t last = (room + step - 1) / step;
    return last * step >= size + padding ? last : last + 1;  // a window begins in the input or in the padding before it
  };
  shape = x.shape();
  shape[2] = positions(shape[2], kernel.height, stride.height, g.padding.height, g.dilation.height);
  shape[3] = positions(shape[3], kernel.width, stride.width, g.padding.width, g.dilation.width);
  return {{kernel.height, kernel.width},
          {stride.height, stride.width},
          {g.padding.height, g.padding.width},
          {g.dilation.height, g.dilation.width}};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 kernel, const PoolGeometry& geometry) {
  Shape shape;
  LOCKSTEP_CHECK(geometry.count_include_pad && !geometry.divisor,
                 "[max_pool2d] expected no options of a mean, got count_include_pad or divisor");
  const Window2d window = window_of("max_pool2d", x, kernel, geometry, shape);
  const MemoryFormat format = x.memory_format(), inner = detail::kernel_format(x, format);
  const Tensor in = x.contiguous(inner);
  Tensor y = detail::fresh(shape, in.dtype(), in.device(), inner);
  Tensor indices;  // a backward alone asks for them
  if (GradMode::enabled() && in.requires_grad()) indices = detail::fresh(shape, DType::i64, in.device(), inner);
  detail::launch(in.device(), MaxPool2dArgs{in.in(), y.out(), indices.out(), window});
  if (auto* node = record<MaxPool2dNode>(y, in)) {
    node->indices.save(indices);
    node->shape = in.shape();
    node->format = format;
    node->inner = inner;
  }
  return y.to(format);
}

Tensor avg_pool2d(const Tensor& x, Size2 kernel, const PoolGeometry& geometry) {
  Shape shape;
  LOCKSTEP_CHECK(geometry.dilation == Size2(1), "[avg_pool2d] expected no dilation, got ", geometry.dilation);
  const std::optional<int>& divisor = geometry.divisor;
  LOCKSTEP_CHECK(!divisor || *divisor != 0, "[avg_pool2d] expected a divisor other than 0, got ", *divisor);
  const Window2d window = window_of("avg_pool2d", x, kernel, geometry, shape);
  PoolMean mean{geometry.count_include_pad, divisor.value_or(0)};
  // Where no window is cut off at an edge there is nothing to count.
  const std::int64_t elements = std::int64_t{kernel.height} * kernel.width;
  if (mean.divisor == 0 && !geometry.ceil_mode && (mean.padding || geometry.padding == Size2(0)) && elements <= 1 << 30)
    mean.divisor = static_cast<int>(elements);
  return average(x, {window, mean, x.memory_format()}, shape);
}

}  // namespace lockstep
