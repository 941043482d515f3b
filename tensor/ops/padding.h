// Numbers that fill up tensors. Private to the library.
#pragma once

#include "lockstep/kernels/dtype.h"
#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// Whether an integer dtype has this very number. Other dtypes take any: floating ones round it, bool is whether it is
// 0.
LOCKSTEP_API bool can_pad(DType dtype, double value);
// Throws InvalidArgument otherwise.
LOCKSTEP_API void check_padding(const char* op, DType dtype, double value);

}  // namespace lockstep::detail
