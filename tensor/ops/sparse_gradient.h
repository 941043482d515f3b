// The gradient of a matrix of which few rows were used, such as the weight of a large embedding: those rows alone. See
// embedding() in nn_ops.h, which makes such gradients, and docs/training.md for what takes them.
#pragma once

#include <span>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// values[k] is added at row indices[k]; all other rows are zero. Undefined when there is no gradient. Copies are
// handles on the same elements.
struct LOCKSTEP_API SparseGradient {
  Tensor indices;  // i64 [count], in [0, shape[0]), in any order; may repeat
  Tensor values;   // [count, shape[1], ...]
  Shape shape;     // of the matrix

  bool defined() const { return values.defined(); }
  // Each row once, by ascending index, with the sum of its values in the order in which they stand here (the same bits
  // every time). Blocks the host until it is known how many there are.
  SparseGradient coalesce() const;
  // The matrix, on the current stream. Does not block.
  Tensor to_dense() const;
  std::string describe() const;  // "3 rows of f32[7, 4] on host:0"
};
inline std::string to_string(const SparseGradient& gradient) { return gradient.describe(); }

// An operation that takes rows of its only input, on one device. In a plain backward a leaf or mirror gets those rows
// alone: then the engine calls rows() in place of backward().
class RowsNode : public NodeOf<1> {
 public:
  virtual SparseGradient rows(const Tensor& grad_output) = 0;

 protected:
  RowsNode() { gives_rows_ = true; }
};

// What follows computes on the device's current stream, outside any graph, and does not block.
namespace detail {
// As coalesce() but for the number of rows, which stays: those left over have the last index once more, and zeros.
LOCKSTEP_API SparseGradient sum_rows(const SparseGradient& gradient);
// [count] bool: where sorted indices differ from the one before. The others are what sum_rows leaves over.
LOCKSTEP_API Tensor first_of_equals(const Tensor& indices);
// matrix[indices[k]] += values[k], in place, for k = 0, 1, …
LOCKSTEP_API void add_rows(const Tensor& matrix, const Tensor& indices, const Tensor& values);
// All of them, one after another, in memory of its own. At least one; of one shape.
LOCKSTEP_API SparseGradient join_rows(std::span<const SparseGradient> gradients);
}  // namespace detail

}  // namespace lockstep
