// Weights of 8 and 4 bits as numbers.
#pragma once

#include "lockstep/kernels/host/quantized_rows.h"
#include "lockstep/kernels/quantized_args.h"

namespace lockstep::kernels::host {

QuantizedMatrix matrix_of(const QuantizedView& view);

// Rows [begin, end) of the matrix one after the other, in a floating dtype: each element is rounded as a product of
// floats, and once more to `dtype`. Divided among threads.
void dequantize_rows(const QuantizedMatrix& matrix, std::int64_t begin, std::int64_t end, DType dtype, void* out);

}  // namespace lockstep::kernels::host
