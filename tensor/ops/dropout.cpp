#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

Tensor dropout(const Tensor& x, double p, bool training) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[dropout] expected a probability, got ", p);
  detail::check_floating("dropout", x);
  if (!training || p == 0) return x;
  Tensor mask = detail::fresh(x.shape(), x.dtype(), x.device());
  detail::draw(RandomKind::bernoulli, mask, 1 - p);
  if (p < 1) mask.mul_(1 / (1 - p));
  return x * detail::in_format(mask, x.memory_format());  // the same elements stay in any format
}

}  // namespace lockstep
