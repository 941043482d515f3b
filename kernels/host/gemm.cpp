// The blocking of Goto and van de Geijn: strips of b that stay in the cache, blocks of a beside them, and a register
// tile in the middle. Small products skip the packing. Either way an element is one chain of additions in the order of
// k, so it does not depend on the other sizes.
#include "lockstep/kernels/host/gemm.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/host/onednn.h"
#include "lockstep/kernels/host/product_tile.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

constexpr int kSmallRows = 6;  // 6 x 2 accumulators, 2 of b and 1 of a: 15 of the 16 vector registers before AVX-512
template <class T>
constexpr std::int64_t kTileColumns = 2 * kTileWidth<T>;
// Products up to this many multiplications are done before oneDNN has looked at its arguments.
constexpr std::int64_t kSmallFloat = std::int64_t{32} * 32 * 32;

template <class T>
struct Target {  // where a tile goes: c = tile, or c += tile
  T* c;
  std::int64_t stride;
  bool add;
};

// c = or += a @ b for a tile of Rows x 2 vectors, of which `width` columns exist. Row k of b is at b + k * b_stride and
// has two full vectors.
template <int Rows, class T>
[[gnu::noinline]] void multiply_small(std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_column,
                                      const T* b, std::int64_t b_stride, const Target<T>& target, std::int64_t width) {
  constexpr std::int64_t kHalf = kTileWidth<T>;
  const std::int64_t low = std::min(width, kHalf), high = width - low;
  TileVector<T> sums[std::size_t{Rows}][2] = {};
  if (target.add)
    unrolled<Rows>([&](auto i) {
      const T* const from = target.c + i * target.stride;
      sums[i][0] = load_first_tile(from, low);
      sums[i][1] = load_first_tile(from + low, high);
    });
  for (std::int64_t k = 0; k < depth; ++k, a += a_column, b += b_stride) {
    const TileVector<T> b0 = load_tile(b), b1 = load_tile(b + kHalf);
    unrolled<Rows>([&](auto i) {
      const T factor = a[i * a_row];
      sums[i][0] = multiply_add(factor, b0, sums[i][0]);
      sums[i][1] = multiply_add(factor, b1, sums[i][1]);
    });
  }
  if (width == kTileColumns<T>) {
    unrolled<Rows>([&](auto i) {
      store_tile<T>(sums[i][0], target.c + i * target.stride);
      store_tile<T>(sums[i][1], target.c + i * target.stride + kHalf);
    });
    return;
  }
  T tile[std::size_t{Rows}][kTileColumns<T>];
  unrolled<Rows>([&](auto i) {
    store_tile<T>(sums[i][0], tile[i]);
    store_tile<T>(sums[i][1], tile[i] + kHalf);
  });
  for (int i = 0; i < Rows; ++i) std::copy_n(tile[i], width, target.c + i * target.stride);
}

// As multiply_small with a number of rows that is known at run time.
template <class T>
void multiply_rows(std::int64_t rows, std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_column,
                   const T* b, std::int64_t b_stride, const Target<T>& target, std::int64_t width) {
  switch (rows) {
    case 1:
      return multiply_small<1>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 2:
      return multiply_small<2>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 3:
      return multiply_small<3>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 4:
      return multiply_small<4>(depth, a, a_row, a_column, b, b_stride, target, width);
    case 5:
      return multiply_small<5>(depth, a, a_row, a_column, b, b_stride, target, width);
    default:
      return multiply_small<6>(depth, a, a_row, a_column, b, b_stride, target, width);
  }
}

// A strip of kTileColumns columns, row after row, padded with zeros.
template <class T>
void pack_columns(const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
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

// Splits rows into tiles of nearly one height, at most kSmallRows: a tile of one or two rows has too few accumulators
// to keep the multipliers busy. Calls f(first row, height).
template <class F>
void for_each_tile(std::int64_t rows, F&& f) {
  const std::int64_t tiles = (rows + kSmallRows - 1) / kSmallRows;
  for (std::int64_t t = 0, begin = 0; t < tiles; ++t) {
    const std::int64_t end = rows * (t + 1) / tiles;
    f(begin, end - begin);
    begin = end;
  }
}

template <class T>
Matrix<T> part_of(const Matrix<T>& m, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  return {m.data + row * m.row_stride + column * m.column_stride, rows, columns, m.row_stride, m.column_stride};
}

// A panel of b, kPanelDepth x kPanelColumns, is packed once; a block of a beside it, at most kBlockBytes, stays in the
// second-level cache, and of two strips of b kTileDepth rows in the first.
template <class T>
class PackedProduct {
 public:
  PackedProduct(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, bool add)
      : a_(a),
        b_(b),
        c_(c),
        c_stride_(c_stride),
        add_(add),
        depth_(std::min(a.columns, kPanelDepth)),
        columns_(std::min(b.columns, kPanelColumns)),
        tiles_(a.rows),
        block_(std::min(tiles_.count, std::max<std::int64_t>(kBlockBytes / tile_bytes(), 4))),
        packed_a_(scratch_.take<T>(block_ * depth_ * kTileStride)),
        // Of one block of rows, only the strips in hand are needed.
        packed_b_(scratch_.take<T>(block_ == tiles_.count ? kMostBeside * std::min(depth_, kTileDepth) * kStrip<T>
                                                          : strips_of(columns_) * depth_ * kStrip<T>)) {}

  void run() {
    // Nearly equal blocks: a few rows that are left over cost more than their share.
    const std::int64_t blocks = (tiles_.count + block_ - 1) / block_;
    for (column_ = 0; column_ < b_.columns; column_ += kPanelColumns)
      for (k_ = 0; k_ < a_.columns; k_ += kPanelDepth)
        for (std::int64_t i = 0; i < blocks; ++i)
          multiply_block(tiles_.count * i / blocks, tiles_.count * (i + 1) / blocks);
  }

 private:
  static constexpr std::int64_t kPanelDepth = 4 * kTileDepth, kPanelColumns = 1024, kBlockBytes = std::int64_t{1} << 20;
  static constexpr std::int64_t kMostBeside = 4;

  static std::int64_t strips_of(std::int64_t columns) { return (columns + kStrip<T> - 1) / kStrip<T>; }
  std::int64_t tile_bytes() const { return depth_ * kTileStride * static_cast<std::int64_t>(sizeof(T)); }

  void multiply_block(std::int64_t begin, std::int64_t end) {
    const std::int64_t depth = std::min(kPanelDepth, a_.columns - k_),
                       columns = std::min(kPanelColumns, b_.columns - column_);
    int beside = 1;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t height = tiles_.height(t);
      pack_tile(part_of(a_, tiles_.begin(t), height, k_, depth), height, packed_a_ + (t - begin) * depth * kTileStride);
      beside = std::max(beside, strips_beside(static_cast<int>(height)));
    }
    const bool once = block_ == tiles_.count;  // whoever packs strips is the only one who needs them
    for (std::int64_t j = 0; j < columns; j += beside * kStrip<T>) {
      const std::int64_t width = std::min(columns - j, beside * kStrip<T>);
      for (std::int64_t k = 0; k < depth; k += kTileDepth) {
        const std::int64_t terms = std::min(kTileDepth, depth - k);
        // [depth / kTileDepth, columns / kStrip, kTileDepth, kStrip]
        T* const strips = once ? packed_b_ : packed_b_ + k * strips_of(columns) * kStrip<T> + j * terms;
        if (begin == 0) pack_strips(part_of(b_, k_ + k, terms, column_ + j, width), strips);
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int64_t height = tiles_.height(t), most = strips_beside(static_cast<int>(height)) * kStrip<T>;
          for (std::int64_t s = 0; s < width; s += most) {
            T* const c = c_ + tiles_.begin(t) * c_stride_ + column_ + j + s;
            multiply_tile<T>(packed_a_ + ((t - begin) * depth + k) * kTileStride, strips + s * terms, terms * kStrip<T>,
                             terms,
                             {.c = c,
                              .stride = c_stride_,
                              .rows = height,
                              .columns = std::min(width - s, most),
                              .start = add_ || k_ + k > 0 ? c : nullptr,
                              .start_stride = c_stride_});
          }
        }
      }
    }
  }

  Scratch scratch_;
  const Matrix<T>&a_, &b_;
  T* const c_;
  const std::int64_t c_stride_;
  const bool add_;
  const std::int64_t depth_, columns_;  // of a panel
  const TileRows tiles_;
  const std::int64_t block_;  // tiles
  T* const packed_a_;
  T* const packed_b_;
  std::int64_t column_ = 0, k_ = 0;  // where the panel begins
};

// For matrices so small that a pass over the operands costs as much as the product: nothing is packed but the strips
// of b that have no full rows in memory.
template <class T>
void small_gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, bool add) {
  constexpr std::int64_t kTile = kTileColumns<T>;
  const std::int64_t m = a.rows, n = b.columns, depth = a.columns;
  alignas(kTileBytes) T strip[std::size_t{kTileDepth * kTile}];
  for (std::int64_t j = 0; j < n; j += kTile) {
    const std::int64_t width = std::min(kTile, n - j);
    for (std::int64_t k = 0; k < depth || k == 0; k += kTileDepth) {
      const std::int64_t ks = std::min(kTileDepth, depth - k);
      const T* right = b.data + k * b.row_stride + j * b.column_stride;
      std::int64_t right_stride = b.row_stride;
      if (width < kTile || b.column_stride != 1) {
        pack_columns(right, b.row_stride, b.column_stride, ks, width, strip);
        right = strip;
        right_stride = kTile;
      }
      for_each_tile(m, [&](std::int64_t i, std::int64_t height) {
        multiply_rows(height, ks, a.data + i * a.row_stride + k * a.column_stride, a.row_stride, a.column_stride, right,
                      right_stride, Target<T>{c + i * c_stride + j, c_stride, add || k > 0}, width);
      });
    }
  }
}

// c = a @ b, or c += a @ b.
template <class T>
void add_product(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, bool add) {
  // Packing pays when its result is used often enough: by several tiles in both directions.
  if (a.rows <= std::int64_t{2} * kSmallRows || a.rows * b.columns * a.columns <= std::int64_t{48} * 48 * 48)
    small_gemm(a, b, c, c_stride, add);
  else
    PackedProduct<T>(a, b, c, c_stride, add).run();
}

}  // namespace

template <class T>
void gemm(const Matrix<T>& a, const Matrix<T>& b, T* c, std::int64_t c_stride, T alpha, T beta) {
  const std::int64_t m = a.rows, n = b.columns, k = a.columns;
  if (m == 0 || n == 0) return;
  if constexpr (std::is_same_v<T, float>)
    if (m * n * k > kSmallFloat && onednn_gemm(a, b, c, c_stride, alpha, beta)) return;
  if (alpha != T(1) || (beta != T(0) && beta != T(1))) {
    constexpr std::int64_t kRows = std::int64_t{32} * kTileRows;
    Scratch scratch;
    T* const product = scratch.take<T>(std::min(m, kRows) * n);
    for (std::int64_t begin = 0; begin < m; begin += kRows) {
      const std::int64_t rows = std::min(kRows, m - begin);
      add_product(part_of(a, begin, rows, 0, k), b, product, n, false);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          T& to = c[(begin + i) * c_stride + j];
          const T scaled = alpha * product[i * n + j];
          to = beta == T(0) ? scaled : scaled + beta * to;
        }
    }
    return;
  }
  add_product(a, b, c, c_stride, beta != T(0));
}

template void gemm<float>(const Matrix<float>&, const Matrix<float>&, float*, std::int64_t, float, float);
template void gemm<double>(const Matrix<double>&, const Matrix<double>&, double*, std::int64_t, double, double);

}  // namespace lockstep::kernels::host
