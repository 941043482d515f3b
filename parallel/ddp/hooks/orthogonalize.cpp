#include "lockstep/parallel/ddp/hooks/orthogonalize.h"

#include <vector>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

Tensor orthogonalize_rows(const Tensor& rows, double epsilon) {
  // Of its length, what a row must keep: well above the rounding of the projections.
  const double least = rows.dtype() == DType::f64 ? 1e-12 : 1e-5;
  const Tensor floor = max(abs(rows)) * least;
  std::vector<Tensor> left;
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    Tensor row = rows.narrow(0, i, 1);
    // So that squares of tiny or huge numbers are numbers.
    const Tensor largest = max(abs(row));
    row.copy_(where(eq(largest, 0.0), row, row / largest));
    const Tensor before = sum(row * row);
    if (i > 0) {
      const Tensor others = rows.narrow(0, 0, i);
      for (int pass = 0; pass < 2; ++pass) row.sub_(matmul(matmul(row, others.t()), others));
    }
    const Tensor after = sum(row * row);
    const Tensor kept = logical_not(logical_or(after <= before * (least * least), largest <= floor));  // NaN stays
    row.copy_(where(kept, row / (sqrt(after) + (1.0 / largest) * epsilon), 0.0));
    left.push_back(kept.reshape({1, 1}));
  }
  return cat(left, 0);
}

}  // namespace lockstep::detail
