// Products whose right-hand side lies in strips already, in the order in which the kernel reads it: for a matrix that
// is multiplied many times, as that of a recurrent layer is at every step, and those of a prepared module.
#pragma once

#include <cstdint>

#include "lockstep/kernels/host/elementwise.h"

namespace lockstep::kernels::host {

inline constexpr std::int64_t kStripColumns = 16;

// Column s * kStripColumns + j of the product is made of column j of strip s.
struct StripProduct {
  const float* a;       // [rows, depth], row-major, `a_stride` elements from row to row
  const float* strips;  // [strips, depth, kStripColumns]: as many as have `columns`
  float* c;             // [rows, columns], row-major, `c_stride` from row to row; overlaps neither
  std::int64_t rows, depth, columns, a_stride, c_stride;
  const float* start = nullptr;  // what is added to: c itself, or rows `start_stride` apart; null: zeros
  std::int64_t start_stride = 0;
  Loop<1> activation = nullptr;  // of the results
};
// An element is one chain of additions in the order of depth, that begins with what it is added to or 0: fused ones,
// and so the same bits, on any processor that has them.
void strip_gemm(const StripProduct& product);

}  // namespace lockstep::kernels::host
