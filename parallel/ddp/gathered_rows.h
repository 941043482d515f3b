// Sparse gradients of all ranks: their rows one after another instead of a sum of matrices.
#pragma once

#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/ops/sparse_gradient.h"

namespace lockstep::detail {

class GatheredRows {
 public:
  GatheredRows() = default;  // none
  // Room for the rows of all ranks, as many for each as the one has that has most, and this rank's rows (perhaps
  // none), divided by `divisor`. All of it belongs to the current stream. There is none where no rank has rows or
  // `used` is false on all. Blocks until all ranks have said how many they have.
  GatheredRows(Communicator& communicator, const SparseGradient& mine, const Shape& shape, DType dtype, int divisor,
               bool used);

  bool any() const { return values_.defined(); }
  void gather(Communicator& communicator) const;  // on the current stream
  // The rows of all ranks, in the order of the ranks, in memory of their own; undefined where there are none.
  SparseGradient join() const;

 private:
  Shape shape_;
  std::vector<std::int64_t> counts_;  // by rank
  Tensor my_indices_, my_values_, indices_, values_;
};

}  // namespace lockstep::detail
