// The innermost part of products: a tile of the result that stays in registers, and its operands in the order in which
// it reads them. The left-hand side lies in tiles of kTileRows rows, column after column; the right-hand side in strips
// of one cache line of columns, row after row.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

// So many rows and one or two strips fill the registers: 28 sums of 32 with AVX-512, 12 of 16 before.
inline constexpr int kRegisters = kTileBytes == 64 ? 32 : 16;
inline constexpr int kTileRows = kTileBytes == 64 ? 14 : kTileBytes == 32 ? 6 : 3;
inline constexpr std::int64_t kTileStride = kTileBytes == 64 ? 16 : 8;  // of a packed tile, from column to column

template <class T>
inline constexpr std::int64_t kStrip = 64 / sizeof(T);  // columns
template <class T>
inline constexpr int kStripVectors = 64 / kTileBytes;
// After so many terms sums go to the result, from where the next ones take them up: so much of two strips stays in the
// first-level cache.
inline constexpr std::int64_t kTileDepth = 256;

// Calls f(constant) for each number below Count. Unrolled: the sums must be registers, which have no index.
template <int Count, class F>
[[gnu::always_inline]] inline void unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, Count>{});
}

// How many strips side by side a tile of so many rows has: with few sums the multipliers wait for their results and for
// loads of a, each of which serves one strip.
constexpr int strips_beside(int rows) {
  const int fitting = kRegisters / ((rows + 1) * kStripVectors<float>);
  return fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
}
static_assert([] {
  for (int rows = 1; rows <= kTileRows; ++rows) {
    const int sums = rows * strips_beside(rows) * kStripVectors<float>;
    if (sums > kRegisters) return false;
  }
  return true;
}());
template <class T>
inline constexpr std::int64_t kMostOfTile = kRegisters* kTileWidth<T>;  // elements

// Rows x Strips strips of sums, which begin with `start`, null for zeros. `a`: a packed tile from column k on; `b`:
// strips from row k on, `strip_stride` elements from one to the next, of which there are `strips`: behind them comes
// the last one again.
template <class T, int Rows, int Strips>
[[gnu::noinline]] void multiply_tile(const T* a, const T* b, std::int64_t strip_stride, std::int64_t strips,
                                     std::int64_t depth, const T* start, std::int64_t start_stride, T* to,
                                     std::int64_t to_stride) {
  constexpr int kVectors = Strips * kStripVectors<T>, kWide = kTileWidth<T>;
  std::array<const T*, std::size_t{Strips}> right_of;
  unrolled<Strips>([&](auto s) { right_of[s] = b + std::min<std::int64_t>(s, strips - 1) * strip_stride; });
  TileVector<T> sums[std::size_t{Rows}][std::size_t{kVectors}] = {};
  if (start)
    unrolled<Rows>([&](auto i) {
      unrolled<kVectors>([&](auto v) { sums[i][v] = load_tile(start + i * start_stride + v * kWide); });
    });
  for (std::int64_t k = 0; k < depth; ++k, a += kTileStride) {
    TileVector<T> right[std::size_t{kVectors}];
    unrolled<kVectors>([&](auto v) {
      constexpr int kOf = v / kStripVectors<T>, kAt = v % kStripVectors<T>;
      right[v] = load_tile(right_of[kOf] + k * kStrip<T> + std::int64_t{kAt} * kWide);
    });
    unrolled<Rows>([&](auto i) {
      const T factor = a[i];
      unrolled<kVectors>([&](auto v) { sums[i][v] = multiply_add(factor, right[v], sums[i][v]); });
    });
  }
  unrolled<Rows>(
      [&](auto i) { unrolled<kVectors>([&](auto v) { store_tile<T>(sums[i][v], to + i * to_stride + v * kWide); }); });
}

template <class T>
using TileFunction = void (*)(const T*, const T*, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, T*,
                              std::int64_t);
template <class T, int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  return std::array<TileFunction<T>, sizeof...(Rows)>{multiply_tile<T, Rows + 1, strips_beside(Rows + 1)>...};
}

// Where a tile goes, and what it is added to: c itself or others; null: zeros.
template <class T>
struct TileTarget {
  T* c;
  std::int64_t stride;  // from row to row of c
  std::int64_t rows, columns;
  const T* start;
  std::int64_t start_stride;
};

// A tile of at most kTileRows rows and strips_beside(rows) strips.
template <class T>
void multiply_tile(const T* a, const T* b, std::int64_t strip_stride, std::int64_t depth, const TileTarget<T>& target) {
  static constexpr auto kTiles = tiles_of<T>(std::make_integer_sequence<int, kTileRows>{});
  const TileFunction<T> tile = kTiles[static_cast<std::size_t>(target.rows - 1)];
  const std::int64_t width = strips_beside(static_cast<int>(target.rows)) * kStrip<T>;
  const std::int64_t strips = (target.columns + kStrip<T> - 1) / kStrip<T>;
  if (target.columns == width)
    return tile(a, b, strip_stride, strips, depth, target.start, target.start_stride, target.c, target.stride);
  alignas(64) T sums[kMostOfTile<T>];
  for (std::int64_t i = 0; target.start && i < target.rows; ++i) {
    std::fill_n(sums + i * width, width, T(0));
    std::copy_n(target.start + i * target.start_stride, target.columns, sums + i * width);
  }
  tile(a, b, strip_stride, strips, depth, target.start ? sums : nullptr, width, sums, width);
  for (std::int64_t i = 0; i < target.rows; ++i)
    std::copy_n(sums + i * width, target.columns, target.c + i * target.stride);
}

// Rows are divided into tiles of nearly one height: a low one at the end would keep the multipliers waiting.
struct TileRows {
  explicit TileRows(std::int64_t all) : rows(all), count((all + kTileRows - 1) / kTileRows) {}
  std::int64_t begin(std::int64_t tile) const { return rows * tile / count; }
  std::int64_t height(std::int64_t tile) const { return begin(tile + 1) - begin(tile); }
  std::int64_t rows, count;
};

// Of Count vectors, a power of two, the elements one after the other as columns have them: after all of the first come
// all of the second. A register has as many columns as it has room for.
template <class T, std::size_t Count>
[[gnu::always_inline]] inline void transpose(std::array<TileVector<T>, Count>& x) {
  constexpr int kWide = kTileWidth<T>, kCount = static_cast<int>(Count);
  // Two halves, element by element in turn, as often as there are bits in a position.
  const auto merged =
      []<int... I>(std::integer_sequence<int, I...>, const TileVector<T>& a, const TileVector<T>& b, auto half) {
    return __builtin_shufflevector(a, b, (half * kWide / 2 + I / 2 + I % 2 * kWide)...);
  };
  constexpr auto kEach = std::make_integer_sequence<int, kWide>{};
  unrolled<std::countr_zero(Count)>([&](auto) {
    std::array<TileVector<T>, Count> y;
    unrolled<kCount / 2>([&](auto i) {
      y[2 * i] = merged(kEach, x[i], x[i + kCount / 2], std::integral_constant<int, 0>{});
      y[2 * i + 1] = merged(kEach, x[i], x[i + kCount / 2], std::integral_constant<int, 1>{});
    });
    x = y;
  });
}

// Up to Most rows of `from`, which lie `stride` apart, as columns: element k of row i goes to to[k * to_stride + i].
// What is beyond `rows` is no number that anybody reads.
template <class T, int Most = kTileWidth<T>>
void pack_transposed(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t depth, T* to,
                     std::int64_t to_stride) {
  constexpr int kWide = kTileWidth<T>;
  std::int64_t k = 0;
  for (; k + kWide <= depth; k += kWide) {
    std::array<TileVector<T>, std::size_t{Most}> x;
    unrolled<Most>([&](auto i) { x[i] = load_tile(from + std::min<std::int64_t>(i, rows - 1) * stride + k); });
    transpose<T>(x);
    unrolled<kWide>([&](auto i) {
      constexpr int kColumns = kWide / Most;
      [&]<int... I>(std::integer_sequence<int, I...>) {
        const auto column = __builtin_shufflevector(x[i / kColumns], x[i / kColumns], (i % kColumns * Most + I)...);
        std::memcpy(to + (k + i) * to_stride, &column, sizeof column);
      }
      (std::make_integer_sequence<int, Most>{});
    });
  }
  for (; k < depth; ++k)
    for (std::int64_t i = 0; i < rows; ++i) to[k * to_stride + i] = from[i * stride + k];
}

// `height` rows of a, as a tile.
template <class T>
[[gnu::noinline]] void pack_tile(const Matrix<T>& a, std::int64_t height, T* to) {
  constexpr int kWide = kTileWidth<T>;
  const std::int64_t depth = a.columns;
  if (a.column_stride == 1) {
    for (std::int64_t i = 0; i < height; i += kWide) {
      const std::int64_t rows = std::min<std::int64_t>(height - i, kWide);
      const auto pack = rows > kWide / 2 ? pack_transposed<T> : pack_transposed<T, kWide / 2>;
      pack(a.data + i * a.row_stride, a.row_stride, rows, depth, to + i, kTileStride);
    }
    return;
  }
  if (a.row_stride == 1) {
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t i = 0; i < height; i += kWide)
        store_tile<T>(load_first_tile(a.data + k * a.column_stride + i, std::min<std::int64_t>(height - i, kWide)),
                      to + k * kTileStride + i);
    return;
  }
  for (std::int64_t k = 0; k < depth; ++k)
    for (std::int64_t i = 0; i < height; ++i) to[k * kTileStride + i] = a.data[i * a.row_stride + k * a.column_stride];
}

// The columns of b as strips, one after the other; what the last one lacks are zeros.
template <class T>
[[gnu::noinline]] void pack_strips(const Matrix<T>& b, T* to) {
  constexpr int kWide = kTileWidth<T>;
  constexpr std::int64_t kColumns = kStrip<T>;
  const std::int64_t depth = b.rows, whole = b.columns / kColumns, stride = depth * kColumns;
  if (b.column_stride == 1) {
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t s = 0; s < whole; ++s)
        unrolled<kStripVectors<T>>([&](auto v) {
          store_tile<T>(load_tile(b.data + k * b.row_stride + s * kColumns + v * kWide),
                        to + s * stride + k * kColumns + v * kWide);
        });
  } else {
    for (std::int64_t j = 0; j < whole * kColumns; j += kWide) {
      const T* const from = b.data + j * b.column_stride;
      T* const strip = to + j / kColumns * stride + j % kColumns;
      if (b.row_stride == 1) {
        pack_transposed(from, b.column_stride, kWide, depth, strip, kColumns);
        continue;
      }
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t i = 0; i < kWide; ++i) strip[k * kColumns + i] = from[k * b.row_stride + i * b.column_stride];
    }
  }
  const std::int64_t left = b.columns - whole * kColumns;
  if (left == 0) return;
  const T* const from = b.data + whole * kColumns * b.column_stride;
  to += whole * stride;
  for (std::int64_t k = 0; k < depth; ++k, to += kColumns) {
    for (std::int64_t j = 0; j < left; ++j) to[j] = from[k * b.row_stride + j * b.column_stride];
    std::fill(to + left, to + kColumns, T(0));
  }
}

}  // namespace lockstep::kernels::host
