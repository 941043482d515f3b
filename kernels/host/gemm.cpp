// The blocking of Goto and van de Geijn: strips of b that stay in the cache, blocks of a beside them, and a register
// tile in the middle. Small products skip the packing. Either way an element is one chain of additions in the order of
// k (in blocks of kDepth), so it does not depend on the other sizes.
#include "lockstep/kernels/host/gemm.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/host/onednn.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

constexpr int kTileRows = 6;  // 6 x 2 accumulators, 2 of b and 1 of a: 15 of the 16 vector registers before AVX-512
template <class T>
constexpr std::int64_t kTileColumns = 2 * kTileWidth<T>;
// Products up to this many multiplications are done before oneDNN has looked at its arguments.
constexpr std::int64_t kSmallFloat = std::int64_t{32} * 32 * 32;
// Of the blocks: kDepth x kColumns of b and kRows x kDepth of a fit a second-level cache of 1 MiB in double.
constexpr std::int64_t kDepth = 256, kRows = 120, kColumns = 256;

template <class T>
struct Target {  // where a tile goes: c = alpha * tile + keep * c
  T* c;
  std::int64_t stride;
  T alpha, keep;
};

// Of a tile at the right edge.
template <class T>
[[gnu::noinline]] void store_part(const T* tile, std::int64_t rows, const Target<T>& target, std::int64_t width) {
  for (std::int64_t i = 0; i < rows; ++i, tile += kTileColumns<T>) {
    T* to = target.c + i * target.stride;
    for (std::int64_t j = 0; j < width; ++j) {
      const T product = target.alpha * tile[j];
      to[j] = target.keep == T(0) ? product : product + target.keep * to[j];  // as in whole tiles, -0 too
    }
  }
}

// c += a @ b for a tile of Rows x 2 vectors, of which `width` columns exist. Row k of b is at b + k * b_stride and has
// two full vectors.
template <int Rows, class T>
[[gnu::noinline]] void multiply_tile(std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_column,
                                     const T* b, std::int64_t b_stride, const Target<T>& target, std::int64_t width) {
  constexpr std::int64_t kHalf = kTileWidth<T>;
  TileVector<T> sums[std::size_t{Rows}][2] = {};
  // Unrolled by hand, here and below: the accumulators must be registers, and registers have no index.
  const auto for_rows = [](auto&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
    (std::make_integer_sequence<int, Rows>{});
  };
  for (std::int64_t k = 0; k < depth; ++k, a += a_column, b += b_stride) {
    const TileVector<T> b0 = load_tile(b), b1 = load_tile(b + kHalf);
    for_rows([&](auto i) {
      const T factor = a[i * a_row];
      sums[i][0] = multiply_add(factor, b0, sums[i][0]);
      sums[i][1] = multiply_add(factor, b1, sums[i][1]);
    });
  }
  const T alpha = target.alpha, keep = target.keep;
  if (width == kTileColumns<T>) {
    for_rows([&](auto i) {
      T* to = target.c + i * target.stride;
      const TileVector<T> product0 = alpha * sums[i][0], product1 = alpha * sums[i][1];
      store_tile<T>(keep == T(0) ? product0 : product0 + keep * load_tile(to), to);
      store_tile<T>(keep == T(0) ? product1 : product1 + keep * load_tile(to + kHalf), to + kHalf);
    });
    return;
  }
  T tile[std::size_t{Rows}][kTileColumns<T>];
  for_rows([&](auto i) {
    store_tile(sums[i][0], tile[i]);
    store_tile(sums[i][1], tile[i] + kHalf);
  });
  store_part(tile[0], Rows, target, width);
}

// As multiply_tile with a number of rows that is known at run time.
template <class T>
void multiply_rows(std::int64_t rows, std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_column,
                   const T* b, std::int64_t b_stride, const Target<T>& target, std::int64_t width) {
  switch (rows) {
    case 1:
      return multiply_tile<1>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 2:
      return multiply_tile<2>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 3:
      return multiply_tile<3>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 4:
      return multiply_tile<4>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 5:
      return multiply_tile<5>(depth, a, a_row, a_column, b, b_stride, target, width);
    default:
      return multiply_tile<6>(depth, a, a_row, a_column, b, b_stride, target, width);
  }
}

// A strip of kTileColumns columns, row after row, padded with zeros.
template <class T>
void pack_strip(const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                std::int64_t width, T* to) {
  constexpr std::int64_t kTile = kTileColumns<T>;
  if (column_stride == 1) {
    const std::int64_t low = std::min<std::int64_t>(width, kTileWidth<T>), high = width - low;
    for (std::int64_t k = 0; k < depth; ++k, from += row_stride, to += kTile) {
      store_tile(load_first_tile(from, low), to);
      store_tile(load_first_tile(from + low, high), to + kTileWidth<T>);
    }
    return;
  }
  if (width < kTile) std::fill_n(to, depth * kTile, T(0));
  for (std::int64_t j = 0; j < width; ++j)
    for (std::int64_t k = 0; k < depth; ++k) to[k * kTile + j] = from[k * row_stride + j * column_stride];
}

// Splits rows into tiles of nearly one height, at most kTileRows: a tile of one or two rows has too few accumulators to
// keep the multipliers busy. Calls f(first row, height).
template <class F>
void for_each_tile(std::int64_t rows, F&& f) {
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t t = 0, begin = 0; t < tiles; ++t) {
    const std::int64_t end = rows * (t + 1) / tiles;
    f(begin, end - begin);
    begin = end;
  }
}

// A tile of for_each_tile, column after column.
template <class T>
void pack_tile(const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
               std::int64_t height, T* to) {
  for (std::int64_t k = 0; k < depth; ++k, from += column_stride, to += height)
    for (std::int64_t r = 0; r < height; ++r) to[r] = from[r * row_stride];
}
template <class T>
[[gnu::noinline]] void pack_rows(const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                                 std::int64_t rows, T* to) {
  for_each_tile(rows, [&](std::int64_t i, std::int64_t height) {
    const T* tile = from + i * row_stride;
    // The usual heights as constants: their loops are unrolled.
    if (height == kTileRows)
      pack_tile(tile, row_stride, column_stride, depth, kTileRows, to + i * depth);
    else if (height == kTileRows - 1)
      pack_tile(tile, row_stride, column_stride, depth, kTileRows - 1, to + i * depth);
    else
      pack_tile(tile, row_stride, column_stride, depth, height, to + i * depth);
  });
}

template <class T>
void blocked_gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, T alpha, T beta) {
  const std::int64_t m = a.rows, n = b.columns, depth = a.columns;
  constexpr std::int64_t kTile = kTileColumns<T>;
  // Nearly equal blocks of rows: a few that are left over cost more than their share.
  const std::int64_t blocks = (m + kRows - 1) / kRows, most_rows = (m + blocks - 1) / blocks;
  Scratch scratch;
  T* packed_a = scratch.take<T>(most_rows * std::min(depth, kDepth));
  T* packed_b = scratch.take<T>((std::min(n, kColumns) + kTile - 1) / kTile * kTile * std::min(depth, kDepth));
  for (std::int64_t jc = 0; jc < n; jc += kColumns) {
    const std::int64_t columns = std::min(kColumns, n - jc);
    for (std::int64_t pc = 0; pc < depth; pc += kDepth) {
      const std::int64_t ks = std::min(kDepth, depth - pc);
      for (std::int64_t j = 0; j < columns; j += kTile)
        pack_strip(b.data + pc * b.row_stride + (jc + j) * b.column_stride, b.row_stride, b.column_stride, ks,
                   std::min(kTile, columns - j), packed_b + j * ks);
      for (std::int64_t ic = 0; ic < m; ic += most_rows) {
        const std::int64_t rows = std::min(most_rows, m - ic);
        pack_rows(a.data + ic * a.row_stride + pc * a.column_stride, a.row_stride, a.column_stride, ks, rows, packed_a);
        for (std::int64_t j = 0; j < columns; j += kTile)
          for_each_tile(rows, [&](std::int64_t i, std::int64_t height) {
            multiply_rows(height, ks, packed_a + i * ks, 1, height, packed_b + j * ks, kTile,
                          Target<T>{c + (ic + i) * c_stride + jc + j, c_stride, alpha, pc == 0 ? beta : T(1)},
                          std::min(kTile, columns - j));
          });
      }
    }
  }
}

// For matrices so small that a pass over the operands costs as much as the product: nothing is packed but the strips
// of b that have no full rows in memory.
template <class T>
void small_gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, T alpha, T beta) {
  constexpr std::int64_t kTile = kTileColumns<T>;
  const std::int64_t m = a.rows, n = b.columns, depth = a.columns;
  alignas(kTileBytes) T strip[std::size_t{kDepth * kTile}];
  for (std::int64_t j = 0; j < n; j += kTile) {
    const std::int64_t width = std::min(kTile, n - j);
    for (std::int64_t k = 0; k < depth || k == 0; k += kDepth) {
      const std::int64_t ks = std::min(kDepth, depth - k);
      const T* right = b.data + k * b.row_stride + j * b.column_stride;
      std::int64_t right_stride = b.row_stride;
      if (width < kTile || b.column_stride != 1) {
        pack_strip(right, b.row_stride, b.column_stride, ks, width, strip);
        right = strip;
        right_stride = kTile;
      }
      for_each_tile(m, [&](std::int64_t i, std::int64_t height) {
        multiply_rows(height, ks, a.data + i * a.row_stride + k * a.column_stride, a.row_stride, a.column_stride, right,
                      right_stride, Target<T>{c + i * c_stride + j, c_stride, alpha, k == 0 ? beta : T(1)}, width);
      });
    }
  }
}

}  // namespace

template <class T>
void gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, T alpha, T beta) {
  const std::int64_t m = a.rows, n = b.columns, k = a.columns;
  if (m == 0 || n == 0) return;
  if constexpr (std::is_same_v<T, float>)
    if (m * n * k > kSmallFloat && onednn_gemm(a, b, c, c_stride, alpha, beta)) return;
  // Packing pays when its result is used often enough: by several tiles in both directions.
  if (m <= std::int64_t{2} * kTileRows || m * n * k <= std::int64_t{48} * 48 * 48)
    small_gemm(a, b, c, c_stride, alpha, beta);
  else
    blocked_gemm(a, b, c, c_stride, alpha, beta);
}

template void gemm<float>(const Matrix<float>&, const Matrix<float>&, float*, std::int64_t, float, float);
template void gemm<double>(const Matrix<double>&, const Matrix<double>&, double*, std::int64_t, double, double);

}  // namespace lockstep::kernels::host
