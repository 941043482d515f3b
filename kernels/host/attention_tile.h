// The products of attention: tiles of numbers that stay in registers. Rows are padded to whole registers, so there are
// no remainders but those of rows.
#pragma once

#include <cstdint>
#include <utility>

#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

// a * b + c of each element; fused where the processor can.
template <class C>
Vector<C> multiply_add_each(const Vector<C>& a, const Vector<C>& b, const Vector<C>& c) {
#if defined(__AVX2__) && defined(__FMA__)
  if constexpr (kVectorBytes == 32) {
    if constexpr (sizeof(C) == 4)
      return _mm256_fmadd_ps(a, b, c);
    else
      return _mm256_fmadd_pd(a, b, c);
  }
#endif
  return a * b + c;
}

// Queries that are worked on side by side: as many as a register tile has columns. (GCC exports variables of templates
// that are not hidden one by one.)
template <class C>
[[gnu::visibility("hidden")]] inline constexpr std::int64_t kLanes = 2 * kTileWidth<C>;

// Rows of keys and values have a multiple of so many columns, which is one register of a tile at least.
template <class C>
[[gnu::visibility("hidden")]] inline constexpr std::int64_t kColumns = 2 * kWidth<C>;

template <class C>
std::int64_t padded(std::int64_t columns) {
  return (columns + kColumns<C> - 1) / kColumns<C> * kColumns<C>;
}

// What a product does with the numbers that it finds: row i is multiplied with factors[i * stride] before the product
// is added. No factors: they are not read.
template <class C>
struct Keep {
  const C* factors = nullptr;
  std::int64_t stride = 0;
};
template <class C>
[[gnu::visibility("hidden")]] inline constexpr C kOne = 1;
template <class C>
inline constexpr Keep<C> kAdd = {&kOne<C>, 0};

template <class C>
struct Left {  // element [i, k] is at i * row + k * column
  const C* data;
  std::int64_t row, column;
};
template <class C>
struct Right {  // rows of a tile's columns at least
  const C* data;
  std::int64_t stride;
};

// c [Rows, Vectors] = keep * c + a @ b for `tiles` tiles below each other.
template <int Rows, int Vectors, class C>
[[gnu::noinline]] void multiply_tiles(std::int64_t tiles, std::int64_t depth, const Left<C>& a, const Right<C>& b, C* c,
                                      std::int64_t c_stride, const Keep<C>& keep) {
  // Unrolled by hand: the sums must be registers, and registers have no index.
  const auto for_each = []<int... I>(std::integer_sequence<int, I...>, auto&& f) {
    (f(std::integral_constant<int, I>{}), ...);
  };
  constexpr std::make_integer_sequence<int, Rows> kRows;
  constexpr std::make_integer_sequence<int, Vectors> kVectors;
  const C *left_tile = a.data, *factors = keep.factors;
  for (std::int64_t t = 0; t < tiles; ++t, left_tile += Rows * a.row, c += Rows * c_stride) {
    TileVector<C> sums[std::size_t{Rows}][std::size_t{Vectors}] = {};
    const C *left = left_tile, *right = b.data;
    for (std::int64_t k = 0; k < depth; ++k, left += a.column, right += b.stride) {
      TileVector<C> row[std::size_t{Vectors}];
      for_each(kVectors, [&](auto v) { row[v] = load_tile(right + v * kTileWidth<C>); });
      for_each(kRows, [&](auto i) {
        const C factor = left[i * a.row];
        for_each(kVectors, [&](auto v) { sums[i][v] = multiply_add(factor, row[v], sums[i][v]); });
      });
    }
    for_each(kRows, [&](auto i) {
      C* to = c + i * c_stride;
      for_each(kVectors, [&](auto v) {
        C* const at = to + v * kTileWidth<C>;
        if (factors)
          store_tile<C>(multiply_add(factors[i * keep.stride], load_tile(at), sums[i][v]), at);
        else
          store_tile<C>(sums[i][v], at);
      });
    });
    if (factors) factors += Rows * keep.stride;
  }
}

template <class C>
using MultiplyTiles = void (*)(std::int64_t, std::int64_t, const Left<C>&, const Right<C>&, C*, std::int64_t,
                               const Keep<C>&);

// c [rows, columns] = keep * c + a @ b for a number of columns that is a multiple of kColumns. An element is one chain
// of additions in the order of k.
template <class C>
[[gnu::noinline]] void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Left<C>& a,
                                const Right<C>& b, C* c, std::int64_t c_stride, const Keep<C>& keep) {
  if (rows == 0) return;
  // Tiles of nearly one height: a low one has too few sums to keep the multipliers busy.
  constexpr int kMostRows = 6;
  const auto tiles_of = []<int Vectors, int... Less>(std::integer_sequence<int, Vectors>,
                                                     std::integer_sequence<int, Less...>, std::int64_t height) {
    static constexpr MultiplyTiles<C> kHeights[] = {multiply_tiles<Less + 1, Vectors, C>...};
    return kHeights[height - 1];
  };
  const std::int64_t tiles = (rows + kMostRows - 1) / kMostRows, low = rows / tiles, high_tiles = rows % tiles;
  const auto strip = [&](auto vectors, std::int64_t j) {
    const auto below = [&](std::int64_t height, std::int64_t first, std::int64_t count) {
      if (count == 0) return;
      tiles_of(vectors, std::make_integer_sequence<int, kMostRows>(), height)(
          count, depth, {a.data + first * a.row, a.row, a.column}, {b.data + j, b.stride}, c + first * c_stride + j,
          c_stride, {keep.factors ? keep.factors + first * keep.stride : nullptr, keep.stride});
    };
    below(low + 1, 0, high_tiles);
    below(low, high_tiles * (low + 1), tiles - high_tiles);
  };
  std::int64_t j = 0;
  for (; j + 2 * kTileWidth<C> <= columns; j += 2 * kTileWidth<C>) strip(std::integer_sequence<int, 2>(), j);
  if constexpr (kColumns<C> < 2 * kTileWidth<C>)
    if (j < columns) strip(std::integer_sequence<int, 1>(), j);
}

// to [columns, kLanes] = factor * the transpose of `rows` rows, zeros behind the last one.
template <class C>
void transpose(const C* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, C factor, C* to) {
  for (std::int64_t d = 0; d < columns; ++d)
    for (std::int64_t l = 0; l < kLanes<C>; ++l)
      to[d * kLanes<C> + l] = l < rows ? from[l * stride + d] * factor : C(0);
}

}  // namespace lockstep::kernels::host
