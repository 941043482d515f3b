// Operations that arrange elements: joining, splitting, selecting by index, padding. See math_ops.h for what holds for
// all operations. The members of Tensor that give views (reshape, transpose, narrow, …) have free functions here too.
#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

inline Tensor reshape(const Tensor& x, const Shape& shape) { return x.reshape(shape); }
inline Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1) {
  return x.flatten(start_dim, end_dim);
}
inline Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) { return x.transpose(dim0, dim1); }
inline Tensor permute(const Tensor& x, const Dims& dims) { return x.permute(dims); }
inline Tensor expand(const Tensor& x, const Shape& shape) { return x.expand(shape); }
inline Tensor squeeze(const Tensor& x, std::int64_t dim) { return x.squeeze(dim); }
inline Tensor squeeze(const Tensor& x) { return x.squeeze(); }
inline Tensor unsqueeze(const Tensor& x, std::int64_t dim) { return x.unsqueeze(dim); }
inline Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  return x.narrow(dim, start, length);
}
inline Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start,
                    std::optional<std::int64_t> end = {}, std::int64_t step = 1) {
  return x.slice(dim, start, end, step);
}
inline Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) { return x.select(dim, index); }

namespace detail {
LOCKSTEP_API Tensor join(std::span<const Tensor> tensors, std::int64_t dim);
LOCKSTEP_API Tensor join_stacked(std::span<const Tensor> tensors, std::int64_t dim);
template <class List>
concept ListOfTensors = std::convertible_to<const List&, std::span<const Tensor>>;
}  // namespace detail

// Joins along an existing dimension; the other sizes must agree, dtypes are promoted. At least one tensor.
template <detail::ListOfTensors List, std::integral Dim = std::int64_t>
Tensor cat(const List& tensors, Dim dim = 0) {
  return detail::join(tensors, dim);
}
inline Tensor cat(std::initializer_list<Tensor> tensors, std::int64_t dim = 0) {
  return detail::join({tensors.begin(), tensors.size()}, dim);
}
// Joins tensors of one shape along a new dimension.
template <detail::ListOfTensors List>
Tensor stack(const List& tensors, std::int64_t dim = 0) {
  return detail::join_stacked(tensors, dim);
}
inline Tensor stack(std::initializer_list<Tensor> tensors, std::int64_t dim = 0) {
  return detail::join_stacked({tensors.begin(), tensors.size()}, dim);
}

// Views of consecutive parts along `dim`: of `length` each, or at most `chunks` of equal length (the last may be
// shorter), or of the given lengths, which must add up.
LOCKSTEP_API std::vector<Tensor> split(const Tensor& x, std::int64_t length, std::int64_t dim = 0);
LOCKSTEP_API std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
LOCKSTEP_API std::vector<Tensor> split_lengths(const Tensor& x, std::span<const std::int64_t> lengths,
                                               std::int64_t dim = 0);

// Views of the slices along `dim`, which goes.
LOCKSTEP_API std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);
// Vectors [A], [B], … (or single elements) as views of one shape [A, B, …], each constant along the others' dimensions.
LOCKSTEP_API std::vector<Tensor> meshgrid(std::span<const Tensor> vectors);
// x so many times along each dimension; more counts than dimensions begin with new ones.
LOCKSTEP_API Tensor repeat(const Tensor& x, const Dims& times);
// Each slice along `dim` so many times in a row.
LOCKSTEP_API Tensor repeat_interleave(const Tensor& x, std::int64_t times, std::int64_t dim);
// Moves the elements up by `shift` along `dim`, those at the end to the beginning.
LOCKSTEP_API Tensor roll(const Tensor& x, std::int64_t shift, std::int64_t dim);

// Of the last two dimensions what lies on and below (above) the diagonal that is `diagonal` to the right of the main
// one; 0 elsewhere.
LOCKSTEP_API Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
LOCKSTEP_API Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
// `value` where `mask` (bool, broadcast to x) is true, else x, in the dtype of x.
LOCKSTEP_API Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// Reverses the order along `dims` (a copy).
LOCKSTEP_API Tensor flip(const Tensor& x, const Dims& dims);
// Zeros around x: `before` and `after` elements along `dim`.
LOCKSTEP_API Tensor pad(const Tensor& x, std::int64_t dim, std::int64_t before, std::int64_t after);
// `value` around x: counts before and after the elements of the last dimension, then of the one before it, and so on.
// InvalidArgument for a value that the integer dtype of x does not have (0.5, -1 in u8).
LOCKSTEP_API Tensor pad(const Tensor& x, const Dims& before_and_after, double value = 0);

// Indices are integers; one out of range is an InvalidArgument, on asynchronous devices at the next wait.

// The slices of x at `indices` (one-dimensional) along `dim`. Rows selected twice get the sum of both gradients.
LOCKSTEP_API Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& indices);
// x with source[.., k, ..] added at indices[k] along `dim`.
LOCKSTEP_API Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
// out[i][j] = x[i][indices[i][j]] for dim = 1: the shape of `indices`, which must not exceed x except along `dim`.
LOCKSTEP_API Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& indices);
// x with source[i][j] added at [i][indices[i][j]] for dim = 1; `indices` and `source` have one shape.
LOCKSTEP_API Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
// i64, the shape of `indices` with one more dimension of size `classes`: 1 at the index, 0 elsewhere.
LOCKSTEP_API Tensor one_hot(const Tensor& indices, std::int64_t classes);

}  // namespace lockstep
