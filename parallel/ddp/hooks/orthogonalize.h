// Rows of a matrix become orthonormal, without waiting for the device.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// In place, rows [r, n] of f32 or f64, r small: Gram-Schmidt, each row against those before it twice ("twice is
// enough", Giraud et al., 2005), then divided by its length + `epsilon`. A row of which (nearly) nothing is left,
// because it is zero, depends on those before it or is tiny beside the largest one, becomes zero: it would be nothing
// but rounding errors. NaN stays. Returns which rows are left: bool [r, 1]. On the current stream.
LOCKSTEP_API Tensor orthogonalize_rows(const Tensor& rows, double epsilon);

}  // namespace lockstep::detail
