// The derivatives are made of differentiable operations, and sums of 16 bits are taken in f32.
#include "lockstep/tensor/ops/channel_moments.h"

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

DType computed_in(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }
Tensor wide(const Tensor& x) { return x.to(computed_in(x)); }

// All dimensions but that of the channels.
Dims other_dims(const Tensor& x) {
  Dims dims{0};
  for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
  return dims;
}
// Of channels [C], to go with x.
Tensor beside(const Tensor& of_channels, const Tensor& x) {
  Shape shape = Shape::filled(x.rank(), 1);
  shape[1] = x.shape()[1];
  return of_channels.to(computed_in(x)).reshape(shape);
}
double per_channel(const Tensor& x) {
  return static_cast<double>(x.count()) / static_cast<double>(std::max<std::int64_t>(x.shape()[1], 1));
}

class ChannelMomentsNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "channel_moments"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor in = x.get(*this), g = grad_outputs[0];
    // Where there are no elements the gradient still depends on g, as it does for other members.
    const Tensor centre = GradMode::enabled() && in.count() > 0 ? mean(wide(in), other_dims(in)) : average.get(*this);
    const Tensor slope = beside(g.select(0, 1) * 2.0, in);
    const Tensor offset = beside(g.select(0, 0) / std::max(per_channel(in), 1.0), in);
    grad_inputs[0] = ((wide(in) - beside(centre, in)) * slope + offset).to(in.dtype());
  }
  Saved x{*this}, average{*this};
};

class NormalizeChannelsNode final : public NodeOf<5> {
 public:
  const char* name() const override { return "normalize_channels"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor in = x.get(*this), w = weight.get(*this), dy = wide(grad_outputs[0]);
    const Tensor inverse = rsqrt(var.get(*this) + eps);  // [C], as all of the following but the large ones
    const Tensor scale = w.defined() ? inverse * w.to(DType::f64) : inverse;
    const Dims over = other_dims(in);
    if (needs(0)) grad_inputs[0] = (dy * beside(scale, in)).to(in.dtype());
    if (needs(1) || needs(4)) {
      const Tensor total = sum(dy, over).to(DType::f64);
      if (needs(1)) grad_inputs[1] = -(total * scale);
      if (needs(4)) grad_inputs[4] = total.to(bias_dtype);
    }
    if (needs(2) || needs(3)) {
      const Tensor product = sum(dy * (wide(in) - beside(mean.get(*this), in)), over).to(DType::f64);
      if (needs(2)) grad_inputs[2] = product * scale * square(inverse) * -0.5;
      if (needs(3)) grad_inputs[3] = (product * inverse).to(w.dtype());
    }
  }
  Saved x{*this}, mean{*this}, var{*this}, weight{*this};
  DType bias_dtype = DType::f32;
  double eps = 0;
};

Tensor parameter(const Tensor& of_channels, const Tensor& x) {
  return of_channels.defined() ? of_channels.to(computed_in(x)).contiguous() : of_channels;
}

}  // namespace

Tensor channel_moments(const Tensor& x) {
  Tensor moments = fresh_zeros({3, x.shape()[1]}, DType::f64, x.device()), average = moments.select(0, 0);
  if (x.count() > 0) {
    const NoGrad no_grad;
    const Tensor in = wide(x);
    moments.select(0, 0).copy_(mean(in, other_dims(x)));
    moments.select(0, 1).copy_(sum(square(in - beside(average, in)), other_dims(x)));
    moments.select(0, 2).fill_(per_channel(x));
  }
  if (auto* node = record<ChannelMomentsNode>(moments, x)) {
    node->x.save(x);
    node->average.save(average.clone());
  }
  return moments;
}

Tensor normalize_channels(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight,
                          const Tensor& bias, double eps) {
  Tensor y;
  {
    const NoGrad no_grad;
    const std::int64_t batch = x.shape()[0], channels = x.shape()[1];
    const DType dtype = computed_in(x);
    const MemoryFormat format = x.memory_format();
    y = fresh(x.shape(), dtype, x.device(), format);
    if (x.count() > 0) {
      const std::int64_t plane = x.count() / (batch * channels);
      const Shape flat =  // in channels_last, a row of channels for each pixel
          format == MemoryFormat::channels_last ? Shape{batch * plane, channels, 1} : Shape{batch, channels, plane};
      const Tensor in = x.to(dtype).contiguous(format), w = parameter(weight, x), b = parameter(bias, x);
      const Tensor centre = mean.to(dtype).contiguous(), spread = var.to(dtype).contiguous();
      launch(x.device(), BatchNormArgs{.x = In{view_reshaped(in, flat)},
                                       .weight = w.in(),
                                       .bias = b.in(),
                                       .running_mean = centre.in_out(),
                                       .running_var = spread.in_out(),
                                       .y = Out{view_reshaped(y, flat)},
                                       .mean = Tensor().out(),
                                       .inv_std = Tensor().out(),
                                       .training = false,
                                       .momentum = 0,
                                       .eps = eps});
    }
    y = y.to(x.dtype());
  }
  if (auto* node = record<NormalizeChannelsNode>(y, x, mean, var, weight, bias)) {
    node->x.save(x);
    node->mean.save(mean);
    node->var.save(var);
    node->weight.save(weight);
    if (bias.defined()) node->bias_dtype = bias.dtype();
    node->eps = eps;
  }
  return y;
}

}  // namespace lockstep::detail
