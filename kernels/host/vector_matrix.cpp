#include "lockstep/kernels/host/vector_matrix.h"

#include <algorithm>

#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kParts = 8;
constexpr int kTogether = 4;  // rows, so that sums are loaded and stored a quarter as often

// sums += row @ matrix for kTogether rows of the matrix.
void add_rows(const float* x, std::int64_t x_step, const float* rows, std::int64_t step, std::int64_t columns,
              float* sums) {
  std::int64_t j = 0;
  for (; j + kWidth<float> <= columns; j += kWidth<float>) {
    Vector<float> sum = load(sums + j);
    for (int r = 0; r < kTogether; ++r) sum = multiply_add(x[r * x_step], load(rows + r * step + j), sum);
    store(sum, sums + j);
  }
  for (; j < columns; ++j)
    for (int r = 0; r < kTogether; ++r) sums[j] += x[r * x_step] * rows[r * step + j];
}

}  // namespace

bool is_for_vector_matrix(const Matrix<float>& row, const Matrix<float>& matrix) {
  constexpr std::int64_t kFewest = kParts * 64, kWidest = 8192, kElements = std::int64_t{1} << 20;
  return row.rows == 1 && matrix.column_stride == 1 && matrix.rows >= kFewest && matrix.columns <= kWidest &&
         matrix.rows * matrix.columns >= kElements;
}

void vector_matrix(const Matrix<float>& row, const Matrix<float>& matrix, float* out, float alpha, float beta) {
  Scratch scratch;
  const std::int64_t columns = matrix.columns;
  float* const all_sums = scratch.take<float>(kParts * columns);
  for_pieces(kParts, 1, [&](std::int64_t part, std::int64_t) {
    float* const sums = all_sums + part * columns;
    std::fill_n(sums, columns, 0.0F);
    std::int64_t k = matrix.rows * part / kParts;
    const std::int64_t end = matrix.rows * (part + 1) / kParts;
    const auto x = [&](std::int64_t i) { return row.data + i * row.column_stride; };
    const auto from = [&](std::int64_t i) { return matrix.data + i * matrix.row_stride; };
    for (; k + kTogether <= end; k += kTogether)
      add_rows(x(k), row.column_stride, from(k), matrix.row_stride, columns, sums);
    for (; k < end; ++k)
      for (std::int64_t j = 0; j < columns; ++j) sums[j] += *x(k) * from(k)[j];
  });
  for (std::int64_t j = 0; j < columns; ++j) {
    float sum = all_sums[j];
    for (std::int64_t part = 1; part < kParts; ++part) sum += all_sums[part * columns + j];
    out[j] = beta == 0 ? alpha * sum : alpha * sum + beta * out[j];
  }
}

}  // namespace lockstep::kernels::host
