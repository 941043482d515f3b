#include "lockstep/kernels/host/product.h"

#include <algorithm>

namespace lockstep::kernels::host {
namespace {

// In multiplications: some 8 microseconds in f32.
constexpr std::int64_t kPieceCost = std::int64_t{1} << 19;
// Enough to keep several cores busy to the end. More would be smaller, and what is packed for each is packed more
// often: small products are halved at least.
constexpr std::int64_t kEnough = 8;
std::int64_t enough(std::int64_t cost) { return std::clamp<std::int64_t>(cost / (8 * kPieceCost), 2, kEnough); }

// An element that is packed or stored costs as much as some multiplications.
std::int64_t cost(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t kElementCost = 4;
  return depth * rows * columns + kElementCost * (rows * columns + depth * (rows + columns));
}

std::int64_t pieces_of(std::int64_t size, std::int64_t most) { return (size + most - 1) / most; }

// Pieces of nearly one size, at multiples of `unit`.
std::int64_t evenly(std::int64_t size, std::int64_t most, std::int64_t unit) {
  if (most >= size) return size;
  const std::int64_t pieces = pieces_of(size, most), part = pieces_of(size, pieces);
  return std::min(size, (part + unit - 1) / unit * unit);
}

}  // namespace

Piece piece_of_product(std::int64_t batches, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                       const Blocks& blocks) {
  constexpr std::int64_t kRowUnit = 8;
  const std::int64_t one = cost(rows, columns, depth);
  if (batches * one < 2 * kPieceCost) return {batches, rows, columns};
  if (one < 2 * kPieceCost) {
    return {piece_rows(batches, one, kPieceCost), rows, columns};
  }
  Piece piece{1, rows, columns};
  std::int64_t pieces = batches;
  for (const Blocks::Size& size : blocks.sizes) {
    if (pieces >= enough(batches * one)) break;
    std::int64_t most_rows = std::min(rows, size.rows), most_columns = std::min(columns, size.columns);
    const std::int64_t larger = pieces_of(kPieceCost, cost(most_rows, most_columns, depth));
    (rows >= columns ? most_rows : most_columns) *= larger;
    const Piece next{1, evenly(rows, most_rows, kRowUnit), evenly(columns, most_columns, blocks.unit)};
    const std::int64_t next_pieces = batches * pieces_of(rows, next.rows) * pieces_of(columns, next.columns);
    if (next_pieces > pieces) piece = next, pieces = next_pieces;
  }
  return piece;
}

}  // namespace lockstep::kernels::host
