// Moves elements between views with any strides and contiguous buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/kernels/dtype.h"

namespace lockstep::kernels::host {

// An element of which only the size matters. It may stand for elements of any type (a plain integer may not: the
// compiler would assume that a float in memory and an integer are never the same thing).
template <class T>
struct [[gnu::may_alias]] Bits {
  T value;
};

enum class HalfAs : bool { bits, floats };  // what a buffer holds of f16 and bf16

// Rows in the buffer follow each other without gaps.
struct Tile {
  std::int64_t rows, columns;
};

struct Mover {
  // Strides are in elements, along a row and from row to row.
  void (*gather)(const void* from, std::int64_t stride, std::int64_t row_stride, void* to, Tile tile);
  void (*scatter)(const void* from, void* to, std::int64_t stride, std::int64_t row_stride, Tile tile);
  std::size_t buffer_bytes;  // of an element in the buffer
};

Mover find_mover(DType dtype, HalfAs half);

}  // namespace lockstep::kernels::host
