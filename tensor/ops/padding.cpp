#include "lockstep/tensor/ops/padding.h"

#include <cmath>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {

bool can_pad(DType dtype, double value) {
  if (is_floating(dtype) || dtype == DType::boolean) return true;
  return std::isfinite(value) && wrapped(value, dtype) == value;
}

void check_padding(const char* op, DType dtype, double value) {
  LOCKSTEP_CHECK(can_pad(dtype, value), "[", op, "] expected padding that ", dtype, " has, got ", value);
}

}  // namespace lockstep::detail
