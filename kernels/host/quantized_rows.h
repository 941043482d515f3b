// Some rows times a matrix of 8 or 4 bits, which is read from memory once and widened in registers.
#pragma once

#include <cstdint>

namespace lockstep::kernels::host {

// [rows, columns], as QuantizedView has it.
struct QuantizedMatrix {
  const void* codes;
  const float* scales;
  std::int64_t rows, columns, group;
  bool is_nibbles;

  std::int64_t row_bytes() const { return is_nibbles ? (columns + 1) / 2 : columns; }
  std::int64_t groups() const { return (columns + group - 1) / group; }
};

// sums [count, matrix.rows] = x [count, matrix.columns] @ matrix^T. With `round_x` the rows of x are rounded to 8 bits
// first. Divides itself among threads. An element's additions have one order, whatever the number of rows and of
// threads, and with 8 floats in a register as with 16.
void multiply_quantized(const float* x, std::int64_t count, const QuantizedMatrix& matrix, bool round_x, float* sums);

}  // namespace lockstep::kernels::host
