// A loop over views, divided among threads.
#pragma once

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {

// Calls f(nest, offsets) for parts of the nest that make up the whole of it: parts of one dimension, which begin at
// `offsets` elements in each view. `element_bytes`: of all views together. `across`: a dimension of which a few are one
// cache line of a transposed view, so that parts of less would read it several times; 0: there is none.
template <std::size_t N, class F>
void for_parts(const LoopNest<N>& nest, std::int64_t element_bytes, F&& f, int across = 0) {
  constexpr std::array<std::int64_t, N> kBegin{};
  std::int64_t bytes = element_bytes;
  for (int d = 0; d < nest.rank; ++d) bytes *= nest.sizes[d];
  if (nest.empty) return;
  if (bytes < 2 * kPieceBytes) return f(nest, kBegin);
  // The outermost dimension that has enough for many parts, else the largest.
  constexpr std::int64_t kEnough = 16;
  int dim = nest.rank - 1;
  for (int d = nest.rank - 1; d >= 0 && nest.sizes[dim] < kEnough; --d)
    if (nest.sizes[d] > nest.sizes[dim]) dim = d;
  constexpr std::int64_t kVectors = 64, kLine = 16;
  if (dim == across && nest.sizes[0] >= kEnough * kVectors) dim = 0;
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): the nest is not empty
  std::int64_t rows = piece_rows(nest.sizes[dim], bytes / nest.sizes[dim], kPieceBytes);
  const std::int64_t together = dim == 0 ? kVectors : dim == across ? kLine : 1;
  rows = (rows + together - 1) / together * together;
  for_pieces(nest.sizes[dim], rows, [&](std::int64_t begin, std::int64_t end) {
    LoopNest<N> part = nest;
    part.sizes[dim] = end - begin;
    std::array<std::int64_t, N> offsets;
    for (std::size_t v = 0; v < N; ++v) offsets[v] = begin * nest.strides[dim][v];
    f(static_cast<const LoopNest<N>&>(part), static_cast<const std::array<std::int64_t, N>&>(offsets));
  });
}

}  // namespace lockstep::kernels::host
