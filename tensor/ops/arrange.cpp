// Arrangements that are made of other operations.
#include <algorithm>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// [rows, columns] of bool: whether column - row <= diagonal.
Tensor below(const char* op, const Tensor& x, std::int64_t diagonal) {
  detail::check_defined(op, x);
  LOCKSTEP_CHECK(x.rank() >= 2, "[", op, "] expected at least two dimensions, got ", x);
  const TensorOptions options{.dtype = DType::i64, .device = x.device()};
  // The last column of each row. Beyond the matrix one diagonal is like the other.
  const std::int64_t offset = std::clamp(diagonal, -x.size(-2), x.size(-1));
  const Tensor last = arange(0, x.size(-2), 1, options) + static_cast<double>(offset);
  return le(arange(0, x.size(-1), 1, options), last.unsqueeze(1));
}

Tensor zero_of(const Tensor& x) { return detail::fresh_scalar(0, x.dtype(), x.device()); }

}  // namespace

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  detail::check_defined("unbind", x);
  const int along = normalize_dim("unbind", dim, x.rank());
  std::vector<Tensor> parts;
  if (x.shape()[along] == 0) return parts;
  for (const Tensor& part : split(x, 1, along)) parts.push_back(part.squeeze(along));
  return parts;
}

std::vector<Tensor> meshgrid(std::span<const Tensor> vectors) {
  LOCKSTEP_CHECK(!vectors.empty() && vectors.size() <= static_cast<std::size_t>(kMaxRank), "[meshgrid] expected 1 to ",
                 kMaxRank, " vectors, got ", vectors.size());
  Shape shape;
  for (const Tensor& vector : vectors) {
    detail::check_same_device("meshgrid", vectors[0], vector);
    LOCKSTEP_CHECK(vector.rank() <= 1, "[meshgrid] expected vectors, got ", vector);
    shape.push_back(vector.count());
  }
  std::vector<Tensor> grids;
  for (int i = 0; i < shape.rank(); ++i) {
    Shape line = Shape::filled(shape.rank(), 1);
    line[i] = shape[i];
    grids.push_back(vectors[static_cast<std::size_t>(i)].reshape(line).expand(shape));
  }
  return grids;
}

Tensor repeat(const Tensor& x, const Dims& times) {
  detail::check_defined("repeat", x);
  bool valid = times.rank() >= x.rank();
  for (const std::int64_t count : times) valid = valid && count >= 0;
  LOCKSTEP_CHECK(valid, "[repeat] expected a count of at least 0 for each dimension of ", x, ", got ", times);
  Tensor y = x;
  while (y.rank() < times.rank()) y = y.unsqueeze(0);
  for (int i = 0; i < times.rank(); ++i) {
    if (times[i] == 1) continue;
    // As a dimension before the repeated one, which a copy merges with it.
    Shape shape = y.shape(), merged = y.shape();
    shape.insert(i, times[i]);
    LOCKSTEP_CHECK(!__builtin_mul_overflow(merged[i], times[i], &merged[i]),
                   "[repeat] expected sizes of at most 2^63 - 1, got ", x, " times ", times);
    y = y.unsqueeze(i).expand(shape).reshape(merged);
  }
  return y.storage() == x.storage() ? y.clone() : y;
}

Tensor repeat_interleave(const Tensor& x, std::int64_t times, std::int64_t dim) {
  const int along = detail::normalize_dim_of("repeat_interleave", dim, x);
  LOCKSTEP_CHECK(times >= 0, "[repeat_interleave] expected a count of at least 0, got ", times, " for ", x);
  if (x.rank() == 0) return repeat(x, {times});
  Shape shape = x.shape(), merged = x.shape();
  shape.insert(along + 1, times);
  LOCKSTEP_CHECK(!__builtin_mul_overflow(merged[along], times, &merged[along]),
                 "[repeat_interleave] expected sizes of at most 2^63 - 1, got ", x, " times ", times);
  const Tensor y = x.unsqueeze(along + 1).expand(shape).reshape(merged);
  return y.storage() == x.storage() ? y.clone() : y;
}

Tensor roll(const Tensor& x, std::int64_t shift, std::int64_t dim) {
  const int along = detail::normalize_dim_of("roll", dim, x);
  if (x.count() == 0 || x.rank() == 0) return x.clone();
  const std::int64_t size = x.shape()[along], by = (shift % size + size) % size;
  return cat({x.narrow(along, size - by, by), x.narrow(along, 0, size - by)}, along);
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return where(below("tril", x, diagonal), x, zero_of(x)); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return where(below("triu", x, diagonal - 1), zero_of(x), x); }

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  detail::check_same_device("masked_fill", x, mask);
  LOCKSTEP_CHECK(mask.dtype() == DType::boolean, "[masked_fill] expected a bool mask, got ", mask, " for ", x);
  LOCKSTEP_CHECK(detail::broadcast("masked_fill", x, mask) == x.shape(),
                 "[masked_fill] expected a mask that broadcasts to the shape of the other, got ", mask, " for ", x);
  LOCKSTEP_CHECK(x.dtype() == DType::boolean || detail::dtype_with(x, value) == x.dtype(),
                 "[masked_fill] expected a number that fits into ", x.dtype(), ", got ", value, " for ", x);
  return where(mask, detail::fresh_scalar(value, x.dtype(), x.device()), x);
}

}  // namespace lockstep
