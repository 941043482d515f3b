// Lines of [outer, size, inner] and elements of a loop nest, divided among threads.
#pragma once

#include <algorithm>
#include <utility>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {

// Calls f(outer_begin, outer_end, inner_begin, inner_end) for pieces that make up [outer, inner], of lines that cost
// `line_bytes` each. Pieces begin at a multiple of `together` in outer, or are a part of inner where outer is small.
template <class F>
void for_lines(std::int64_t outer, std::int64_t inner, std::int64_t line_bytes, std::int64_t together, F&& f) {
  constexpr std::int64_t kEnough = 16, kLeastWidth = 1024;  // narrow strips are slow to read
  const std::int64_t bytes = inner * line_bytes;            // of one of outer
  if (lockstep::detail::computes_alone()) return f(std::int64_t{0}, outer, std::int64_t{0}, inner);
  if (outer >= kEnough || inner < 2 * kLeastWidth || bytes < 2 * kPieceBytes) {
    const std::int64_t rows = (piece_rows(outer, bytes, kPieceBytes) + together - 1) / together * together;
    for_pieces(outer, rows, [&](std::int64_t begin, std::int64_t end) { f(begin, end, std::int64_t{0}, inner); });
    return;
  }
  const std::int64_t least = piece_rows(inner, line_bytes, kPieceBytes);
  const std::int64_t width = (least + kLeastWidth - 1) / kLeastWidth * kLeastWidth;
  const std::int64_t strips = (inner + width - 1) / width;
  for_pieces(outer * strips, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t o = i / strips, from = i % strips * width;
      f(o, o + 1, from, std::min(inner, from + width));
    }
  });
}

// Calls f(offsets, from, to) for the elements [begin, end) of a nest that is not empty, the innermost dimension first:
// those at `from` to `to` of the innermost dimension at `offsets`.
template <std::size_t N, class F>
void for_each_run(const LoopNest<N>& nest, std::int64_t begin, std::int64_t end, F&& f) {
  if (begin >= end) return;
  const std::int64_t size = nest.inner_size();
  std::array<std::int64_t, N> offsets{};
  std::int64_t index[kMaxRank] = {};
  std::int64_t from = begin % size;
  if (std::int64_t row = begin / size; row > 0)
    for (int d = 1; d < nest.rank; ++d) {
      index[d] = row % nest.sizes[d];
      row /= nest.sizes[d];
      for (std::size_t v = 0; v < N; ++v) offsets[v] += index[d] * nest.strides[d][v];
    }
  for (std::int64_t left = end - begin;;) {
    const std::int64_t to = std::min(size, from + left);
    f(std::as_const(offsets), from, to);
    left -= to - from;
    if (left == 0) return;
    from = 0;
    for (int d = 1; d < nest.rank; ++d) {
      if (++index[d] < nest.sizes[d]) {
        for (std::size_t v = 0; v < N; ++v) offsets[v] += nest.strides[d][v];
        break;
      }
      index[d] = 0;
      for (std::size_t v = 0; v < N; ++v) offsets[v] -= (nest.sizes[d] - 1) * nest.strides[d][v];
    }
  }
}

}  // namespace lockstep::kernels::host
