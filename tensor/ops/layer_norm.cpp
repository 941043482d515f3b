#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/group_norm.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

Shape detail::normalized_rows(const char* op, const Tensor& x, const Shape& normalized) {
  check_floating(op, x);
  const int missing = x.rank() - normalized.rank();
  bool fits = missing >= 0 && !normalized.empty();
  for (int i = 0; fits && i < normalized.rank(); ++i) fits = x.shape()[missing + i] == normalized[i];
  LOCKSTEP_CHECK(fits, "[", op, "] expected an input whose last sizes are ", normalized, ", got ", x);
  const std::int64_t length = element_count(normalized);
  return {length == 0 ? 0 : x.count() / length, length};
}

Tensor layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight, const Tensor& bias, double eps) {
  if (detail::widens(x, weight, bias)) [[unlikely]]
    return layer_norm(detail::widened(x), normalized, detail::widened(weight), detail::widened(bias), eps);
  const Shape rows = detail::normalized_rows("layer_norm", x, normalized);
  return detail::normalize_groups("layer_norm", x, {rows[0], 1, rows[1], 1}, normalized, weight, bias, eps);
}

}  // namespace lockstep
