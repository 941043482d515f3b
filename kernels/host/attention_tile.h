// The products of attention: tiles of numbers that stay in registers. Rows are padded to whole tiles, so there are no
// remainders but those of rows.
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

// Columns of a register tile, and queries that are worked on side by side. (GCC exports variables of templates that are
// not hidden one by one.)
template <class C>
[[gnu::visibility("hidden")]] inline constexpr std::int64_t kLanes = 2 * kWidth<C>;

template <class C>
std::int64_t padded(std::int64_t columns) {
  return (columns + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
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
struct Right {  // rows of kLanes neighbours at least
  const C* data;
  std::int64_t stride;
};

// c [Rows, kLanes] = keep * c + a @ b for `tiles` tiles below each other.
template <int Rows, class C>
[[gnu::noinline]] void multiply_tiles(std::int64_t tiles, std::int64_t depth, const Left<C>& a, const Right<C>& b, C* c,
                                      std::int64_t c_stride, const Keep<C>& keep) {
  // Unrolled by hand: the sums must be registers, and registers have no index.
  const auto for_rows = [](auto&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
    (std::make_integer_sequence<int, Rows>{});
  };
  const C *left_tile = a.data, *factors = keep.factors;
  for (std::int64_t t = 0; t < tiles; ++t, left_tile += Rows * a.row, c += Rows * c_stride) {
    Vector<C> sums[std::size_t{Rows}][2] = {};
    const C *left = left_tile, *right = b.data;
    for (std::int64_t k = 0; k < depth; ++k, left += a.column, right += b.stride) {
      const Vector<C> b0 = load(right), b1 = load(right + kWidth<C>);
      for_rows([&](auto i) {
        const C factor = left[i * a.row];
        sums[i][0] = multiply_add(factor, b0, sums[i][0]);
        sums[i][1] = multiply_add(factor, b1, sums[i][1]);
      });
    }
    if (factors == nullptr) {
      for_rows([&](auto i) {
        store<C>(sums[i][0], c + i * c_stride);
        store<C>(sums[i][1], c + i * c_stride + kWidth<C>);
      });
      continue;
    }
    for_rows([&](auto i) {
      C* to = c + i * c_stride;
      const C factor = factors[i * keep.stride];
      store<C>(multiply_add(factor, load(to), sums[i][0]), to);
      store<C>(multiply_add(factor, load(to + kWidth<C>), sums[i][1]), to + kWidth<C>);
    });
    factors += Rows * keep.stride;
  }
}

// c [rows, columns] = keep * c + a @ b for a number of columns that is a multiple of kLanes. An element is one chain of
// additions in the order of k.
template <class C>
void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Left<C>& a, const Right<C>& b, C* c,
              std::int64_t c_stride, const Keep<C>& keep) {
  if (rows == 0) return;
  // Tiles of nearly one height, at most 6: a low one has too few sums to keep the multipliers busy.
  const std::int64_t tiles = (rows + 5) / 6, low = rows / tiles, high_tiles = rows % tiles;
  const auto below = [&](std::int64_t height, std::int64_t first, std::int64_t count, std::int64_t j) {
    const Left<C> left{a.data + first * a.row, a.row, a.column};
    const Right<C> right{b.data + j, b.stride};
    const Keep<C> kept{keep.factors ? keep.factors + first * keep.stride : nullptr, keep.stride};
    C* to = c + first * c_stride + j;
    switch (height) {
      case 1:
        return multiply_tiles<1>(count, depth, left, right, to, c_stride, kept);
      case 2:
        return multiply_tiles<2>(count, depth, left, right, to, c_stride, kept);
      case 3:
        return multiply_tiles<3>(count, depth, left, right, to, c_stride, kept);
      case 4:
        return multiply_tiles<4>(count, depth, left, right, to, c_stride, kept);
      case 5:
        return multiply_tiles<5>(count, depth, left, right, to, c_stride, kept);
      default:
        return multiply_tiles<6>(count, depth, left, right, to, c_stride, kept);
    }
  };
  for (std::int64_t j = 0; j < columns; j += kLanes<C>) {
    if (high_tiles > 0) below(low + 1, 0, high_tiles, j);
    below(low, high_tiles * (low + 1), tiles - high_tiles, j);
  }
}

// to [columns, kLanes] = factor * the transpose of `rows` rows, zeros behind the last one.
template <class C>
void transpose(const C* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, C factor, C* to) {
  for (std::int64_t d = 0; d < columns; ++d)
    for (std::int64_t l = 0; l < kLanes<C>; ++l)
      to[d * kLanes<C> + l] = l < rows ? from[l * stride + d] * factor : C(0);
}

}  // namespace lockstep::kernels::host
