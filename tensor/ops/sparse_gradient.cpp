#include "lockstep/tensor/ops/sparse_gradient.h"

#include <vector>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace detail {

Tensor first_of_equals(const Tensor& indices) {
  const std::int64_t count = indices.count();
  if (count == 0) return fresh({0}, DType::boolean, indices.device());
  return logical_not(pad(eq(indices.narrow(0, 1, count - 1), indices.narrow(0, 0, count - 1)), 0, 1, 0));
}

void add_rows(const Tensor& matrix, const Tensor& indices, const Tensor& values) {
  launch(matrix.device(), IndexAddArgs{values.in(), indices.in(), matrix.in_out(), 0});
  matrix.mark_changed();
}

SparseGradient join_rows(std::span<const SparseGradient> gradients) {
  NoGrad no_grad;
  const SparseGradient& first = gradients.front();
  if (gradients.size() == 1) return {first.indices.clone(), first.values.clone(), first.shape};
  std::vector<Tensor> indices, values;
  for (const SparseGradient& gradient : gradients) {
    indices.push_back(gradient.indices);
    values.push_back(gradient.values);
  }
  return {cat(indices), cat(values), first.shape};
}

SparseGradient sum_rows(const SparseGradient& gradient) {
  NoGrad no_grad;
  const std::int64_t count = gradient.indices.count();
  if (count < 2) return gradient;
  const Tensor order = argsort(gradient.indices, 0);  // equal ones stay in their order
  const Tensor sorted = index_select(gradient.indices, 0, order), last = sorted.narrow(0, count - 1, 1);
  const Tensor first = first_of_equals(sorted);
  const Tensor place = cumsum(first, 0) - 1;  // of each row's sum
  SparseGradient sums{last.expand({count}).clone(),
                      fresh_zeros(gradient.values.shape(), gradient.values.dtype(), gradient.values.device()),
                      gradient.shape};
  add_rows(sums.indices, place, (sorted - last) * first.to(DType::i64));
  add_rows(sums.values, place, index_select(gradient.values, 0, order));
  return sums;
}

}  // namespace detail

SparseGradient SparseGradient::coalesce() const {
  NoGrad no_grad;
  LOCKSTEP_CHECK(defined(), "[coalesce] expected a gradient, got ", *this);
  if (indices.count() < 2) return *this;
  const SparseGradient sums = detail::sum_rows(*this);
  const auto count = detail::first_of_equals(sums.indices).to(DType::i64).sum().item<std::int64_t>();
  return {sums.indices.narrow(0, 0, count).clone(), sums.values.narrow(0, 0, count).clone(), shape};
}

Tensor SparseGradient::to_dense() const {
  NoGrad no_grad;
  LOCKSTEP_CHECK(defined(), "[to_dense] expected a gradient, got ", *this);
  Tensor dense = detail::fresh_zeros(shape, values.dtype(), values.device());
  detail::add_rows(dense, indices, values);
  return dense;
}

std::string SparseGradient::describe() const {
  if (!defined()) return "undefined";
  return cat(indices.count(), " rows of ", values.dtype(), shape, " on ", values.device());
}

}  // namespace lockstep
