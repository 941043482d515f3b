// Matrix multiplication in one thread, for float and double.
#pragma once

#include <cstdint>

namespace lockstep::kernels::host {

template <class T>
struct Matrix {  // strides in elements
  const T* data;
  std::int64_t rows, columns, row_stride, column_stride;

  Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

// c = alpha * a @ b + beta * c. `c` is row-major with `c_stride` elements from row to row and does not overlap a or b;
// with beta 0 it is not read. The terms of an element are added in the order of k, whatever the other sizes: to c
// where alpha and beta are 1.
template <class T>
void gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, T alpha, T beta);

extern template void gemm<float>(const Matrix<float>&, const Matrix<float>&, float*, std::int64_t, float, float);
extern template void gemm<double>(const Matrix<double>&, const Matrix<double>&, double*, std::int64_t, double, double);

}  // namespace lockstep::kernels::host
