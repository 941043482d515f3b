#include "lockstep/kernels/host/gather.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/host/half_rows.h"

namespace lockstep::kernels::host {
namespace {

// Of a tile whose columns have no gaps: squares that stay in registers, then what is left. Returns how many rows and
// columns the squares cover.
Tile transpose_squares(const Bits<std::uint32_t>* from, std::int64_t stride, Bits<std::uint32_t>* to, Tile tile) {
  constexpr std::int64_t kSide = 8;
  typedef std::uint32_t Row __attribute__((vector_size(kSide * 4), aligned(4), may_alias));
  const Tile covered{tile.rows / kSide * kSide, tile.columns / kSide * kSide};
  for (std::int64_t c = 0; c < covered.columns; c += kSide)
    for (std::int64_t r = 0; r < covered.rows; r += kSide) {
      Row a[kSide], b[kSide];
      for (std::int64_t i = 0; i < kSide; ++i) a[i] = *reinterpret_cast<const Row*>(from + (c + i) * stride + r);
      // Neighbours at a distance of 1, then 2, then 4 exchange what is not on the diagonal.
      for (std::int64_t i = 0; i < kSide; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
      }
      for (const std::int64_t i : {0, 1, 4, 5}) {
        a[i] = __builtin_shufflevector(b[i], b[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        a[i + 2] = __builtin_shufflevector(b[i], b[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      }
      for (const std::int64_t i : {0, 1, 2, 3}) {
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
      for (std::int64_t i = 0; i < kSide; ++i) *reinterpret_cast<Row*>(to + (r + i) * tile.columns + c) = b[i];
    }
  return covered;
}

// A row from its last element to its first; `from` is the last one.
template <class T>
void reverse_row(const Bits<T>* from, Bits<T>* to, std::int64_t count) {
  constexpr std::size_t kWidth = 32 / sizeof(T);
  constexpr auto kStep = static_cast<std::int64_t>(kWidth);
  typedef T Vector __attribute__((vector_size(32)));
  std::int64_t c = 0;
  for (; c + kStep <= count; c += kStep) {
    Vector v;
    std::memcpy(&v, from - c - (kStep - 1), sizeof v);
    v = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return __builtin_shufflevector(v, v, static_cast<int>(kWidth - 1 - I)...);
    }
    (std::make_index_sequence<kWidth>{});
    std::memcpy(to + c, &v, sizeof v);
  }
  for (; c < count; ++c) to[c] = from[-c];
}

// Of a long row that is gathered in blocks: asks for the block after the next one. The processor sees no stream where
// operands take turns, a block of each.
template <class T>
void prefetch_behind(const T* block, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(block + 2 * count + i);
}

template <class From, class To>
void gather(const void* from, std::int64_t stride, std::int64_t row_stride, void* to, Tile tile) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  if (std::abs(stride) > std::abs(row_stride) && stride != 1 &&
      tile.rows > 1) {  // column by column is how it lies in memory
    Tile done{0, 0};
    if constexpr (std::is_same_v<From, To> && sizeof(To) == 4)
      if (row_stride == 1) done = transpose_squares(source, stride, target, tile);
    for (std::int64_t c = 0; c < tile.columns; ++c)
      for (std::int64_t r = c < done.columns ? done.rows : 0; r < tile.rows; ++r)
        target[r * tile.columns + c] = static_cast<To>(source[c * stride + r * row_stride]);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r, source += row_stride, target += tile.columns) {
    if (stride == 0) {
      const To value = static_cast<To>(*source);  // std::fill_n would fear that it is one of those it overwrites
      for (std::int64_t c = 0; c < tile.columns; ++c) target[c] = value;
    } else if (stride == 1) {
      if constexpr (!std::is_same_v<From, To>)
        if (tile.rows == 1) prefetch_behind(source, tile.columns);
      convert_row(source, target, tile.columns);
    } else {
      if constexpr (std::is_same_v<From, To>)
        if (stride == -1) {
          reverse_row(source, target, tile.columns);
          continue;
        }
      for (std::int64_t c = 0; c < tile.columns; ++c) target[c] = static_cast<To>(source[c * stride]);
    }
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
