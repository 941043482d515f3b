#include "lockstep/kernels/memory_format.h"

#include <algorithm>

namespace lockstep {
namespace {
constexpr int kInwardOut[] = {1, 3, 2, 0};  // C, W, H, N
}  // namespace

Strides format_strides(const Shape& shape, MemoryFormat format) {
  if (format == MemoryFormat::contiguous) return contiguous_strides(shape);
  Strides strides = contiguous_strides({shape[0], shape[2], shape[3], shape[1]});
  return {strides[0], strides[3], strides[1], strides[2]};
}

bool is_dense(const Shape& shape, const Strides& strides, MemoryFormat format) {
  if (format == MemoryFormat::contiguous) return is_contiguous(shape, strides);
  if (shape.rank() != 4) return false;
  return is_contiguous({shape[0], shape[2], shape[3], shape[1]}, {strides[0], strides[2], strides[3], strides[1]});
}

MemoryFormat format_of(const Shape& shape, const Strides& strides) {
  if (shape.rank() != 4 || strides[1] == 0) return MemoryFormat::contiguous;
  std::int64_t least = 0;  // that the next stride may be
  for (const int d : kInwardOut) {
    if (shape[d] == 0 || strides[d] < least) return MemoryFormat::contiguous;
    if (d == 0 && least == strides[1]) return MemoryFormat::contiguous;  // [N, 1, 1, 1]
    least = strides[d] * shape[d];
  }
  return MemoryFormat::channels_last;
}

}  // namespace lockstep
