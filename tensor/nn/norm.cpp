#include "lockstep/tensor/nn/norm.h"

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/folding.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {
Tensor on(const Parameter& parameter, Device device) { return parameter.defined() ? parameter.on(device) : Tensor(); }

Tensor in(DType dtype, const Tensor& x) { return x.defined() ? x.to(dtype) : x; }

// Like the operation, of floating dtypes that differ, as in mixed precision: computed in the widest, at least f32.
Tensor batch_norm_of_any(const Tensor& x, const Tensor& weight, const Tensor& bias, BatchNormState state,
                         Activation activation) {
  DType widest = x.dtype();
  bool same = true;
  for (const Tensor& each : {weight, bias, state.running_mean, state.running_var}) {
    if (!each.defined()) continue;
    same = same && each.dtype() == x.dtype();
    widest = promote_types(widest, each.dtype());
  }
  if (same || !is_floating(x.dtype()) || detail::widens(x)) return batch_norm(x, weight, bias, state, activation);
  widest = promote_types(widest, DType::f32);
  const Tensor mean = state.running_mean, var = state.running_var;
  state.running_mean = in(widest, mean), state.running_var = in(widest, var);
  const bool rectified = activation == Activation::relu;
  const Tensor y =
      batch_norm(in(widest, x), in(widest, weight), in(widest, bias), state, rectified ? activation : Activation::none);
  for (auto [kept, now] : {std::pair{mean, state.running_mean}, std::pair{var, state.running_var}})
    if (state.training && kept.defined() && kept.dtype() != widest) kept.copy_(now);
  return rectified ? y.to(x.dtype()) : detail::activated(y.to(x.dtype()), activation);
}

}  // namespace

BatchNorm::BatchNorm(const char* name, std::int64_t channels, const BatchNormOptions& options, int least_rank,
                     int largest_rank)
    : name_(name), options_(options), least_rank_(least_rank), largest_rank_(largest_rank) {
  LOCKSTEP_CHECK(channels > 0, "[", name, "] expected at least one channel, got ", channels);
  if (options.affine) {
    weight = Parameter(ones({channels}));
    bias = Parameter(zeros({channels}));
  }
  if (options.track_running_stats) {
    running_mean = Buffer(zeros({channels}));
    running_var = Buffer(ones({channels}));
    num_batches_tracked = Buffer(zeros({}, {.dtype = DType::i64}));
  }
}

void BatchNorm::members(Members& m) {
  m("weight", weight);
  m("bias", bias);
  m("running_mean", running_mean);
  m("running_var", running_var);
  m("num_batches_tracked", num_batches_tracked);
}

void BatchNorm::check_rank(const Tensor& x) const {
  LOCKSTEP_CHECK(x.rank() >= least_rank_ && x.rank() <= largest_rank_, "[", name_, "] expected an input of rank ",
                 least_rank_, " to ", largest_rank_, ", got ", x);
}

Tensor BatchNorm::activated(const Tensor& x, Activation activation) const {
  if (has_hooks()) return detail::activated((*this)(x), activation);
  const CallScope scope(*this);
  try {
    return normalize(x, activation);
  } catch (const InvalidArgument&) {
    rethrow_named();
  }
}

Tensor BatchNorm::normalize(const Tensor& x, Activation activation) const {
  const bool training = is_training();
  if (training && shared_ && shared_->shares(x.device())) return detail::activated(forward_shared(x), activation);
  check_rank(x);
  const Device device = x.device();
  const Tensor w = on(weight, device), b = on(bias, device);
  Tensor mean = on(running_mean, device), var = on(running_var, device);
  detail::FoldingCall* const folding = detail::folding_call();
  if (folding && !training && mean.defined()) [[unlikely]]
    if (Tensor y = folding->norm({.norm = this,
                                  .x = x,
                                  .weight = w,
                                  .bias = b,
                                  .mean = mean,
                                  .var = var,
                                  .eps = options_.eps,
                                  .folds = !state_->has_hooks});
        y.defined())
      return detail::activated(y, activation);
  BatchNormState state{.running_mean = mean,
                       .running_var = var,
                       .training = training,
                       .momentum = options_.momentum.value_or(1),
                       .eps = options_.eps};
  const bool tracks = training && mean.defined(), averages = tracks && !options_.momentum && x.count() > 0;
  if (averages) {
    state.running_mean = zeros_like(mean);
    state.running_var = zeros_like(var);
  }
  const bool seen = folding && folding->sees(x);
  Tensor y = batch_norm_of_any(x, w, b, state, seen ? Activation::none : activation);
  if (seen) [[unlikely]] {
    folding->normed(x, y);
    y = detail::activated(y, activation);
  }
  if (!tracks) return y;
  Tensor batches = num_batches_tracked.on(device);
  batches.add_(1);
  if (averages) {
    // In tensors: how many batches there were is not known on the host.
    const NoGrad no_grad;
    mean.copy_(mean + (state.running_mean - mean) / batches.to(mean.dtype()));
    var.copy_(var + (state.running_var - var) / batches.to(var.dtype()));
  }
  return y;
}

LayerNorm::LayerNorm(const Shape& normalized, LayerNormOptions options) : normalized_(normalized), eps_(options.eps) {
  LOCKSTEP_CHECK(!normalized.empty(), "[LayerNorm] expected at least one size, got ", normalized);
  if (options.affine) weight = Parameter(ones(normalized));
  if (options.affine && options.bias) bias = Parameter(zeros(normalized));
}

Tensor LayerNorm::forward(const Tensor& x) const {
  const Device device = x.device();
  const Tensor w = on(weight, device), b = on(bias, device);
  return layer_norm(x, normalized_, w, b, eps_);
}

RMSNorm::RMSNorm(const Shape& normalized, RMSNormOptions options) : normalized_(normalized), eps_(options.eps) {
  LOCKSTEP_CHECK(!normalized.empty(), "[RMSNorm] expected at least one size, got ", normalized);
  if (options.affine) weight = Parameter(ones(normalized));
}

Tensor RMSNorm::forward(const Tensor& x) const { return rms_norm(x, normalized_, on(weight, x.device()), eps_); }

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  LOCKSTEP_CHECK(groups > 0 && channels > 0 && channels % groups == 0, "[GroupNorm] expected channels that ", groups,
                 " groups divide, got ", channels);
  if (!options.affine) return;
  weight = Parameter(ones({channels}));
  bias = Parameter(zeros({channels}));
}

Tensor GroupNorm::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.rank() >= 2 && x.shape()[1] == channels_, "[GroupNorm] expected an input [batch, ", channels_,
                 ", ..], got ", x);
  const Device device = x.device();
  const Tensor w = on(weight, device), b = on(bias, device);
  return group_norm(x, groups_, w, b, eps_);
}

}  // namespace lockstep
