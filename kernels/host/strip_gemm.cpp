#include "lockstep/kernels/host/strip_gemm.h"

#include <algorithm>

#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/product_tile.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {
namespace {

static_assert(kStripColumns == kStrip<float>);

// Of a: so much stays in the second-level cache beside the strips and the result.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// Some tiles of a, packed, times the strips.
class Block {
 public:
  Block(const StripProduct& p, const TileRows& tiles, std::int64_t begin, std::int64_t end, float* packed)
      : p_(p), tiles_(tiles), begin_(begin), end_(end), packed_(packed) {
    for (std::int64_t t = begin; t < end; ++t) beside_ = std::max(beside_, beside_of(t));
    constexpr std::int64_t kPieceElements = std::int64_t{1} << 16;
    for_pieces(end - begin, piece_rows(end - begin, p.depth * kTileStride, kPieceElements),
               [&](std::int64_t from, std::int64_t to) {
                 for (std::int64_t t = from; t < to; ++t) {
                   const std::int64_t row = tiles.begin(begin + t), height = tiles.height(begin + t);
                   pack_tile<float>({p.a + row * p.a_stride, height, p.depth, p.a_stride, 1}, height, tile(t));
                 }
               });
  }

  void multiply() const {
    constexpr std::int64_t kPieceTerms = std::int64_t{1} << 20;  // multiplications: some 20 microseconds
    constexpr std::int64_t kManyGroups = 8;
    const std::int64_t width = beside_ * kStripColumns, groups = (p_.columns + width - 1) / width,
                       rows = tiles_.begin(end_) - tiles_.begin(begin_), terms = rows * p_.depth * width,
                       count = end_ - begin_;
    // Where there are few columns, the tiles are divided as well.
    const std::int64_t parts = groups < kManyGroups ? std::clamp<std::int64_t>(terms / kPieceTerms, 1, count) : 1;
    for_pieces(groups * parts, piece_rows(groups * parts, terms / parts, kPieceTerms),
               [&](std::int64_t from, std::int64_t to) {
                 for (std::int64_t i = from; i < to; ++i) {
                   const std::int64_t g = i / parts, part = i % parts;
                   multiply_part(begin_ + count * part / parts, begin_ + count * (part + 1) / parts, g * width,
                                 std::min(p_.columns, (g + 1) * width));
                 }
               });
  }

 private:
  float* tile(std::int64_t t) const { return packed_ + t * p_.depth * kTileStride; }
  std::int64_t beside_of(std::int64_t t) const { return strips_beside(static_cast<int>(tiles_.height(t))); }

  // Tiles times columns.
  void multiply_part(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t k = 0; k < p_.depth; k += kTileDepth)
      for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t row = tiles_.begin(t), most = beside_of(t) * kStripColumns;
        for (std::int64_t j = begin; j < end; j += most) {
          float* const c = p_.c + row * p_.c_stride + j;
          TileTarget<float> target{.c = c,
                                   .stride = p_.c_stride,
                                   .rows = tiles_.height(t),
                                   .columns = std::min(end - j, most),
                                   .start = c,
                                   .start_stride = p_.c_stride};
          if (k == 0) {
            target.start = p_.start ? p_.start + row * p_.start_stride + j : nullptr;
            target.start_stride = p_.start_stride;
          }
          multiply_tile<float>(tile(t - begin_) + k * kTileStride, p_.strips + j * p_.depth + k * kStripColumns,
                               p_.depth * kStripColumns, std::min(kTileDepth, p_.depth - k), target);
        }
      }
    if (!p_.activation) return;
    for (std::int64_t row = tiles_.begin(first); row < tiles_.begin(last); ++row) {
      float* const c = p_.c + row * p_.c_stride + begin;
      p_.activation({c}, c, end - begin, {});
    }
  }

  const StripProduct& p_;
  const TileRows& tiles_;
  const std::int64_t begin_, end_;
  float* const packed_;
  std::int64_t beside_ = 1;  // strips that tiles have side by side
};

}  // namespace

void strip_gemm(const StripProduct& p) {
  if (p.rows == 0 || p.columns == 0) return;
  const TileRows tiles(p.rows);
  if (p.depth == 0) {
    for (std::int64_t i = 0; i < p.rows; ++i) {
      float* const row = p.c + i * p.c_stride;
      if (!p.start)
        std::fill_n(row, p.columns, 0.0F);
      else if (p.start != p.c)
        std::copy_n(p.start + i * p.start_stride, p.columns, row);
      if (p.activation) p.activation({row}, row, p.columns, {});
    }
    return;
  }
  const std::int64_t tile_bytes = p.depth * kTileStride * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t most = std::min(tiles.count, std::max<std::int64_t>(kBlockBytes / tile_bytes, 4)),
                     blocks = (tiles.count + most - 1) / most;
  Scratch scratch;
  float* const packed = scratch.take<float>(most * p.depth * kTileStride);
  for (std::int64_t i = 0; i < blocks; ++i)
    Block(p, tiles, tiles.count * i / blocks, tiles.count * (i + 1) / blocks, packed).multiply();
}

}  // namespace lockstep::kernels::host
