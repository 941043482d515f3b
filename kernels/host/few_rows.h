// One to eight rows times a large matrix, as a language model decodes. The matrix is read from memory once, in its own
// type, and widened in registers.
#pragma once

#include "lockstep/kernels/half.h"
#include "lockstep/kernels/host/gemm.h"

namespace lockstep::kernels::host {

// Whether it is faster than a product of blocks, by sizes and strides alone. `has_products`: the processor multiplies
// blocks of T by instructions of its own.
template <class T>
bool is_for_few_rows(const Matrix<T>& rows, const Matrix<T>& matrix, bool has_products);

// sums = rows @ matrix, for what is_for_few_rows holds of; `sums` is contiguous. Divides itself among threads. An
// element has one order of additions: whatever the number of rows and of threads.
template <class T>
void multiply_few_rows(const Matrix<T>& rows, const Matrix<T>& matrix, float* sums);

#define LOCKSTEP_FEW_ROWS(T)                                                         \
  extern template bool is_for_few_rows<T>(const Matrix<T>&, const Matrix<T>&, bool); \
  extern template void multiply_few_rows<T>(const Matrix<T>&, const Matrix<T>&, float*)
LOCKSTEP_FEW_ROWS(float);
LOCKSTEP_FEW_ROWS(Half);
LOCKSTEP_FEW_ROWS(BFloat16);
#undef LOCKSTEP_FEW_ROWS

}  // namespace lockstep::kernels::host
