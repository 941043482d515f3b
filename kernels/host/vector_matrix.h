// A row times a large matrix, which is read from memory once: reading it row by row is what matters.
#pragma once

#include "lockstep/kernels/host/gemm.h"

namespace lockstep::kernels::host {

// Whether it is faster than a product of blocks: not for a matrix that the caches hold, nor for one so wide that they
// do not hold a row of sums.
bool is_for_vector_matrix(const Matrix<float>& row, const Matrix<float>& matrix);
// out = alpha * row @ matrix + beta * out; with beta 0 out is not read. Divides itself among threads; an element is the
// sum of eight parts' sums, in their order.
void vector_matrix(const Matrix<float>& row, const Matrix<float>& matrix, float* out, float alpha, float beta);

}  // namespace lockstep::kernels::host
