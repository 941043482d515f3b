#include "lockstep/kernels/layout.h"

#include <algorithm>

namespace lockstep {

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text += "]";
}

std::int64_t element_count(const Shape& shape) {
  bool empty = false;
  for (const std::int64_t size : shape) {
    LOCKSTEP_CHECK(size >= 0, "[shape] expected sizes of at least 0, got ", shape);
    empty |= size == 0;
  }
  if (empty) return 0;  // whatever the other sizes multiply to
  std::int64_t count = 1;
  for (const std::int64_t size : shape)
    LOCKSTEP_CHECK(!__builtin_mul_overflow(count, size, &count),
                   "[shape] expected fewer than 2^63 elements, got shape ", shape);
  return count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.rank(), 1);
  // Unsigned: an empty shape may have sizes whose product does not fit, and nobody will use those strides.
  std::uint64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
  }
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  bool dense = true;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;  // no element, no gap
    if (shape[i] == 1 || !dense) continue;
    dense = strides[i] == expected;
    expected *= shape[i];
  }
  return dense;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  for (int i = 0; i < shorter.rank(); ++i) {
    std::int64_t& size = result[longer.rank() - 1 - i];
    const std::int64_t other = shorter[shorter.rank() - 1 - i];
    if (size == other || other == 1) continue;
    LOCKSTEP_CHECK(size == 1, "[", op, "] expected shapes that broadcast together, got ", a, " and ", b);
    size = other;
  }
  return result;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  Strides result = Dims::filled(target.rank(), 0);
  const int missing = target.rank() - shape.rank();
  for (int i = 0; i < shape.rank(); ++i)
    result[missing + i] = shape[i] == 1 && target[missing + i] != 1 ? 0 : strides[i];
  return result;
}

int normalize_dim(const char* op, std::int64_t dim, int rank) {
  LOCKSTEP_CHECK(dim >= -rank && dim < rank, "[", op, "] expected a dimension in [", -rank, ", ", rank,
                 ") for a tensor of rank ", rank, ", got ", dim);
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

}  // namespace lockstep
