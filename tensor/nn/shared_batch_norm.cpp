// A BatchNorm in training whose batch is divided among several members.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/ops/channel_moments.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// Per channel [C], in f64.
struct Statistics {
  Tensor mean, var;  // var is biased: the mean of the squared distances
  Tensor count;
};

// Of [members, 3, C] moments; a member without elements has no weight. (Chan, Golub and LeVeque, 1979, "Updating
// formulae and a pairwise algorithm for computing sample variances".)
Statistics merge(const Tensor& moments) {
  const Tensor means = moments.select(1, 0), squares = moments.select(1, 1);
  const Tensor counts = moments.select(1, 2).detach(), total = sum(counts, {0}), count = clamp(total, 1);
  const Tensor share = counts / count;
  const Tensor mean = sum(means * share, {0});
  return {mean, sum(squares / count + share * square(means - mean), {0}), total};
}

}  // namespace

Tensor BatchNorm::forward_shared(const Tensor& x) const {
  try {
    return normalize_shared(x);
  } catch (const std::exception& error) {
    shared_->abandon(error.what());
    throw;
  }
}

Tensor BatchNorm::normalize_shared(const Tensor& input) const {
  Tensor x = input;
  check_rank(x);
  detail::check_floating(name_, x);
  if (detail::widens(x)) x = detail::widened(x);
  const auto mine = [&](const Parameter& parameter) {
    if (!parameter.defined()) return Tensor();
    Tensor tensor = parameter.on(x.device());
    LOCKSTEP_CHECK(tensor.shape() == Shape{x.shape()[1]}, "[", name_, "] expected ", tensor.shape()[0],
                   " channels, got ", x);
    return tensor;
  };
  const Tensor w = mine(weight), b = mine(bias), running[2] = {mine(running_mean), mine(running_var)};
  const Tensor moments = detail::channel_moments(x), all = shared_->gather(moments);
  LOCKSTEP_CHECK(all.rank() == 3 && all.size(0) > 0 && all.size(1) == moments.size(0) &&
                     all.size(2) == moments.size(1) && all.dtype() == moments.dtype() && all.device() == x.device(),
                 "[", name_, "] expected the moments of all members like ", moments, " of each, got ", all);
  const Statistics batch = merge(all);
  Tensor y = detail::normalize_channels(x, batch.mean, batch.var, w, b, options_.eps);
  if (!running[0].defined()) return y;

  // In tensors: the host does not know what the others have brought.
  const NoGrad no_grad;
  const Tensor learns = (batch.count > 1).to(DType::f64);  // [C], the same everywhere
  Tensor batches = num_batches_tracked.on(x.device());
  batches.add_(learns.select(0, 0).to(batches.dtype()));
  const Tensor part = options_.momentum ? learns * *options_.momentum : learns / clamp(batches.to(DType::f64), 1);
  const Tensor unbiased = batch.var * (batch.count / clamp(batch.count - 1, 1));
  for (const auto& [kept, now] : {std::pair{running[0], batch.mean}, std::pair{running[1], unbiased}}) {
    Tensor statistic = kept;
    statistic.copy_(kept.to(DType::f64) * (1 - part) + now * part);
  }
  return y;
}

}  // namespace lockstep
