#include "lockstep/kernels/host/gather.h"

#include <algorithm>

#include "lockstep/kernels/host/half_rows.h"

namespace lockstep::kernels::host {
namespace {

template <class From, class To>
void gather(const void* from, std::int64_t stride, std::int64_t row_stride, void* to, Tile tile) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  if (stride > row_stride && tile.rows > 1) {  // column by column is how it lies in memory
    for (std::int64_t c = 0; c < tile.columns; ++c)
      for (std::int64_t r = 0; r < tile.rows; ++r)
        target[r * tile.columns + c] = static_cast<To>(source[c * stride + r * row_stride]);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r, source += row_stride, target += tile.columns) {
    if (stride == 0)
      std::fill_n(target, tile.columns, static_cast<To>(*source));
    else if (stride == 1)
      convert_row(source, target, tile.columns);
    else
      for (std::int64_t c = 0; c < tile.columns; ++c) target[c] = static_cast<To>(source[c * stride]);
  }
}

template <class From, class To>
void scatter(const void* from, void* to, std::int64_t stride, std::int64_t row_stride, Tile tile) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  for (std::int64_t r = 0; r < tile.rows; ++r, source += tile.columns, target += row_stride) {
    if (stride == 1)
      convert_row(source, target, tile.columns);
    else
      for (std::int64_t c = 0; c < tile.columns; ++c) target[c * stride] = static_cast<To>(source[c]);
  }
}

template <class Stored, class Buffered>
constexpr Mover kMover{gather<Stored, Buffered>, scatter<Buffered, Stored>, sizeof(Buffered)};

}  // namespace

Mover find_mover(DType dtype, HalfAs half) {
  if (half == HalfAs::floats && dtype == DType::f16) return kMover<Half, float>;
  if (half == HalfAs::floats && dtype == DType::bf16) return kMover<BFloat16, float>;
  switch (size_of(dtype)) {
    case 1:
      return kMover<Bits<std::uint8_t>, Bits<std::uint8_t>>;
    case 2:
      return kMover<Bits<std::uint16_t>, Bits<std::uint16_t>>;
    case 4:
      return kMover<Bits<std::uint32_t>, Bits<std::uint32_t>>;
    default:
      return kMover<Bits<std::uint64_t>, Bits<std::uint64_t>>;
  }
}

}  // namespace lockstep::kernels::host
