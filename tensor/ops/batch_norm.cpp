// Batch normalisation: one kernel forward and one backward; under create_graph the derivative is built from
// differentiable operations instead.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// x [N, C, L], weight and bias [C]: normalised by the statistics of x itself, then rectified if asked.
class BatchNormNode final : public NodeOf<3> {
 public:
  const char* name() const override { return "batch_norm"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], grad_inputs);
    const Tensor dy = grad_outputs[0].contiguous(), in = x.get(*this), scale = weight.get(*this);
    Tensor dx = detail::fresh_like(dy), dweight, dbias;
    const Shape channels{in.shape()[1]};
    if (needs(1)) dweight = detail::fresh(channels, in.dtype(), in.device());
    if (needs(2)) dbias = detail::fresh(channels, in.dtype(), in.device());
    detail::launch(in.device(),
                   BatchNormGradArgs{dy.in(), in.in(), scale.in(), mean.get(*this).in(), inv_std.get(*this).in(),
                                     dx.out(), dweight.out(), dbias.out(), rectified, bias.get(*this).in()});
    grad_inputs[0] = dx;
    grad_inputs[1] = dweight;
    grad_inputs[2] = dbias;
  }

  void backward_differentiably(const Tensor& of_result, std::span<Tensor> grad_inputs) {
    const Dims over{0, 2};
    const Tensor in = x.get(*this), scale = weight.get(*this);
    const Tensor dy = rectified ? detail::relu_backward(of_result, sign_of_result()) : of_result;
    const Tensor centred = in - in.mean(over, true);
    const Tensor inverse = rsqrt(square(centred).mean(over, true) + eps);
    const Tensor normal = centred * inverse;
    if (needs(0)) {
      const Tensor g = scale.defined() ? dy * scale.reshape({-1, 1}) : dy;
      grad_inputs[0] = (g - g.mean(over, true) - normal * (g * normal).mean(over, true)) * inverse;
    }
    if (needs(1)) grad_inputs[1] = (dy * normal).sum(over);
    if (needs(2)) grad_inputs[2] = dy.sum(over);
  }

  // Of the result before the relu, as the kernel computes it: rounded to 16 bits, a small one might have none.
  Tensor sign_of_result() {
    const NoGrad no_grad;
    const Tensor middle = mean.get(*this), scale = weight.get(*this), shift = bias.get(*this);
    const auto of_channels = [&](const Tensor& each) { return each.to(middle.dtype()).reshape({-1, 1}); };
    Tensor slope = of_channels(inv_std.get(*this));
    if (scale.defined()) slope = slope * of_channels(scale);
    const Tensor in = x.get(*this), y = (in.to(middle.dtype()) - of_channels(middle)) * slope;
    return sign(shift.defined() ? y + of_channels(shift) : y).to(in.dtype());
  }

  Saved x{*this}, weight{*this}, bias{*this}, mean{*this}, inv_std{*this};  // bias: for the relu alone
  double eps = 0;
  bool rectified = false;
};

// Normalised by given statistics: affine in x. Then rectified if asked.
class FixedNormNode final : public NodeOf<3> {
 public:
  const char* name() const override { return "batch_norm"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor dy = rectified ? detail::relu_backward(grad_outputs[0], y.get(*this)) : grad_outputs[0];
    const Tensor scale = weight.get(*this), inverse = inv_std.get(*this).reshape({-1, 1});
    if (needs(0)) grad_inputs[0] = dy * (scale.defined() ? inverse * scale.reshape({-1, 1}) : inverse);
    if (needs(1)) grad_inputs[1] = (dy * ((x.get(*this) - mean.get(*this).reshape({-1, 1})) * inverse)).sum({0, 2});
    if (needs(2)) grad_inputs[2] = dy.sum({0, 2});
  }
  Saved x{*this}, weight{*this}, mean{*this}, inv_std{*this}, y{*this};  // y: for the relu alone
  bool rectified = false;
};

bool uses_own_statistics(const BatchNormState& state) { return state.training || !state.running_mean.defined(); }

Tensor normalize(const Tensor& x, const Tensor& weight, const Tensor& bias, const BatchNormState& state,
                 bool rectified) {
  const Shape channels{x.shape()[1]};
  const bool own_statistics = uses_own_statistics(state);
  Tensor y = detail::fresh_like(x), mean, inv_std;
  if (own_statistics) {
    const DType statistics = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
    mean = detail::fresh(channels, statistics, x.device());
    inv_std = detail::fresh(channels, statistics, x.device());
  }
  const auto running = [&](const Tensor& of) { return own_statistics ? of.in_out() : InOut{of.in()}; };
  detail::launch(x.device(), BatchNormArgs{x.in(), weight.in(), bias.in(), running(state.running_mean),
                                           running(state.running_var), y.out(), mean.out(), inv_std.out(),
                                           own_statistics, state.momentum, state.eps, rectified});
  if (own_statistics) {
    if (state.running_mean.defined()) state.running_mean.mark_changed();
    if (state.running_var.defined()) state.running_var.mark_changed();
    if (auto* node = record<BatchNormNode>(y, x, weight, bias)) {
      node->x.save(x);
      node->weight.save(weight);
      node->mean.save(mean);
      node->inv_std.save(inv_std);
      node->eps = state.eps;
      node->rectified = rectified;
      if (rectified) node->bias.save(bias);
    }
  } else if (auto* node = record<FixedNormNode>(y, x, weight, bias)) {
    NoGrad no_grad;
    if (node->needs(1)) node->x.save(x);
    node->weight.save(weight);
    // Copies: a later training step writes into the running ones.
    node->mean.save(state.running_mean.clone());
    node->inv_std.save(rsqrt(state.running_var + state.eps));
    node->rectified = rectified;
    if (rectified) node->y.save_output(y);
  }
  return y;
}

void check_channels(const char* op, const char* what, const Tensor& x, const Tensor& of_channels) {
  if (!of_channels.defined()) return;
  detail::check_floating_alike(op, x, of_channels);
  LOCKSTEP_CHECK(of_channels.shape() == Shape{x.shape()[1]}, "[", op, "] expected a ", what, " [", x.shape()[1],
                 "] for ", x, ", got ", of_channels);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const BatchNormState& state,
                  Activation activation) {
  if (detail::widens(x)) [[unlikely]]
    return batch_norm(detail::widened(x), detail::widened(weight), detail::widened(bias), state, activation);
  detail::check_floating("batch_norm", x);
  LOCKSTEP_CHECK(x.rank() >= 2, "[batch_norm] expected an input [batch, channels, ..], got ", x);
  check_channels("batch_norm", "weight", x, weight);
  check_channels("batch_norm", "bias", x, bias);
  check_channels("batch_norm", "running mean", x, state.running_mean);
  check_channels("batch_norm", "running variance", x, state.running_var);
  LOCKSTEP_CHECK(state.running_mean.defined() == state.running_var.defined(),
                 "[batch_norm] expected both a running mean and a running variance or neither, got ",
                 state.running_mean, " and ", state.running_var);
  for (const Tensor& running : {state.running_mean, state.running_var})
    LOCKSTEP_CHECK(!running.defined() || (running.contiguous_layout() && !(running.requires_grad() && state.training)),
                   "[batch_norm] expected contiguous running statistics without a gradient, got ", running);
  const bool rectified = activation == Activation::relu;
  if (activation != Activation::none && !rectified)
    return detail::activated(batch_norm(x, weight, bias, state), activation);
  const std::int64_t channels = x.shape()[1];
  const std::int64_t per_channel = x.count() / std::max<std::int64_t>(channels, 1);
  LOCKSTEP_CHECK(!uses_own_statistics(state) || channels == 0 || per_channel != 1,
                 "[batch_norm] expected more than one value per channel to normalise by, got ", x);
  if (x.count() == 0) {  // nothing to learn statistics from; weight and bias still get gradients, of zeros
    Shape of_channels = Shape::filled(x.rank(), 1);
    of_channels[1] = channels;
    Tensor y = weight.defined() ? x * weight.reshape(of_channels) : x * 1;
    return bias.defined() ? y + bias.reshape(of_channels) : y;
  }
  const Tensor scale = detail::contiguous_or_undefined(weight), shift = detail::contiguous_or_undefined(bias);
  if (x.memory_format() == MemoryFormat::channels_last) {  // a row of channels for each pixel
    const Tensor images = x.contiguous(MemoryFormat::channels_last).permute({0, 2, 3, 1});
    return normalize(images.reshape({per_channel, channels, 1}), scale, shift, state, rectified)
        .reshape(images.shape())
        .permute({0, 3, 1, 2});
  }
  const Tensor flat =
      x.contiguous().reshape({x.shape()[0], channels, per_channel / std::max<std::int64_t>(x.shape()[0], 1)});
  return normalize(flat, scale, shift, state, rectified).reshape(x.shape());
}

}  // namespace lockstep
