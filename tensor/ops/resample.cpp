// Resampling of images: adaptive pooling and interpolation. The maps are linear; each and its adjoint differentiate
// into each other.
#include <cmath>

#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

struct Map {
  const char* op;
  ResampleKind kind;
  std::array<double, 2> step;
  bool align_corners;
  MemoryFormat format;  // of both sides
};

Tensor resample(const Tensor& x, const Map& map, bool adjoint, const Shape& shape);

class ResampleNode final : public NodeOf<1> {
 public:
  const char* name() const override { return map.op; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = resample(grad_outputs[0], map, !adjoint, shape);
  }
  Map map;
  bool adjoint = false;
  Shape shape;  // of x
};

Tensor resample(const Tensor& x, const Map& map, bool adjoint, const Shape& shape) {
  const MemoryFormat inner = detail::kernel_format(x, map.format);
  const Tensor in = x.contiguous(inner);
  Tensor y = detail::fresh(shape, in.dtype(), in.device(), inner);
  detail::launch(in.device(), Resample2dArgs{in.in(), y.out(), map.kind, map.step, map.align_corners, adjoint});
  if (auto* node = record<ResampleNode>(y, in)) node->map = map, node->adjoint = adjoint, node->shape = in.shape();
  return y.to(map.format);
}

void check_image(const char* op, const Tensor& x) {
  detail::check_floating(op, x);
  LOCKSTEP_CHECK(x.rank() == 4 && x.shape()[2] > 0 && x.shape()[3] > 0, "[", op,
                 "] expected an input [batch, channels, height, width] of at least 1x1, got ", x);
}

}  // namespace

Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output) {
  check_image("adaptive_avg_pool2d", x);
  LOCKSTEP_CHECK(output.height >= 0 && output.width >= 0,
                 "[adaptive_avg_pool2d] expected an output size of at least 0x0, got ", output);
  return resample(x, {"adaptive_avg_pool2d", ResampleKind::average, {}, false, x.memory_format()}, false,
                  {x.shape()[0], x.shape()[1], output.height, output.width});
}

Tensor interpolate(const Tensor& x, const InterpolateOptions& o) {
  check_image("interpolate", x);
  LOCKSTEP_CHECK(o.size.has_value() != o.scale_factor.has_value(),
                 "[interpolate] expected a size or a scale factor, got ", o.size ? "both" : "neither");
  LOCKSTEP_CHECK(!o.align_corners || o.mode == InterpolateMode::bilinear,
                 "[interpolate] expected align_corners with the mode bilinear, got it with nearest");
  Map map{"interpolate",
          o.mode == InterpolateMode::nearest ? ResampleKind::nearest : ResampleKind::bilinear,
          {},
          o.align_corners,
          x.memory_format()};
  Shape shape = x.shape();
  for (const int i : {0, 1}) {
    const auto source = static_cast<double>(x.shape()[2 + i]);
    double scale = 0;
    if (o.size) {
      shape[2 + i] = i == 0 ? o.size->height : o.size->width;
    } else {
      scale = i == 0 ? o.scale_factor->height : o.scale_factor->width;
      LOCKSTEP_CHECK(std::isfinite(scale) && scale > 0 && source * scale < 0x1p31,
                     "[interpolate] expected a finite scale factor above 0, got ", scale, " for ", x);
      shape[2 + i] = static_cast<std::int64_t>(std::floor(source * scale));
    }
    LOCKSTEP_CHECK(shape[2 + i] > 0, "[interpolate] expected a result of at least 1x1, got ", shape, " from ", x);
    const auto result = static_cast<double>(shape[2 + i]);
    double& step = map.step[i == 0 ? 0 : 1];
    if (o.align_corners)
      step = result > 1 ? (source - 1) / (result - 1) : 0;
    else if (result == source || (result == 2 * source && o.mode == InterpolateMode::nearest))
      step = source / result;  // exactly, whatever the factor was
    else
      step = o.size ? source / result : 1 / scale;
  }
  return resample(x, map, false, shape);
}

}  // namespace lockstep
