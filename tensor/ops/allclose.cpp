// Comparisons that answer on the host.
#include <limits>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

bool equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  NoGrad no_grad;
  return all(eq(a, b.to(a.device()))).item<bool>();
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute) {
  NoGrad no_grad;
  const DType dtype = detail::floating_dtype(promote_types(a.dtype(), b.dtype()));
  const Tensor x = a.to(dtype), y = b.to(a.device()).to(dtype);
  // Infinities that agree have a difference that is NaN, and are equal.
  const Tensor close =
      logical_and(le(abs(x - y), absolute + relative * abs(y)), lt(abs(y), std::numeric_limits<double>::infinity()));
  return all(logical_or(close, eq(x, y))).item<bool>();
}

}  // namespace lockstep
