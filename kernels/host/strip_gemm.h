// Products whose right-hand side lies in strips already, in the order in which the kernel reads it: for a matrix that
// is multiplied many times, as that of a recurrent layer is at every step.
#pragma once

#include <cstdint>

namespace lockstep::kernels::host {

inline constexpr std::int64_t kStripColumns = 16;

// Column s * kStripColumns + j of the product is made of column j of strip s.
struct StripProduct {
  const float* a;       // [rows, depth], row-major, `a_stride` elements from row to row
  const float* strips;  // [strips, depth, kStripColumns]
  float* c;             // [rows, strips * kStripColumns], row-major, `c_stride` from row to row; overlaps neither
  std::int64_t rows, depth, strip_count, a_stride, c_stride;
  bool add;  // c += a @ b; otherwise c = a @ b
};
// An element is one chain of fused additions in the order of depth, that begins with c or 0, on any processor.
void strip_gemm(const StripProduct& product);

}  // namespace lockstep::kernels::host
