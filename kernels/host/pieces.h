// How a kernel is divided among threads: into pieces that its shapes alone decide, so that the bits of a result are the
// same for any number of threads. What is added up over several pieces is added in the order of the pieces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/runtime/host/compute_threads.h"

namespace lockstep::kernels::host {

// A piece should take some 20 microseconds at least: to hand it over takes several. Of what is bound by memory:
inline constexpr std::int64_t kPieceBytes = std::int64_t{1} << 18;

// How many of `count` rows, say, make a piece when one of them costs `cost` of the `piece_cost` that a piece is to
// have. Many rows make large pieces, of which there are enough for any machine.
inline std::int64_t piece_rows(std::int64_t count, std::int64_t cost, std::int64_t piece_cost) {
  constexpr std::int64_t kMostPieces = 256;
  const std::int64_t rows = piece_cost / std::max<std::int64_t>(cost, 1);
  return std::max<std::int64_t>({rows, (count + kMostPieces - 1) / kMostPieces, 1});
}

// Calls f(begin, end) for [0, count) in pieces of `rows`, on the threads there are; see detail::run_pieces.
template <class F>
void for_pieces(std::int64_t count, std::int64_t rows, F&& f) {
  if (count <= rows) {
    if (count > 0) f(std::int64_t{0}, count);
    return;
  }
  lockstep::detail::run_pieces((count + rows - 1) / rows,
                               [&](std::int64_t i) { f(i * rows, std::min(count, (i + 1) * rows)); });
}

}  // namespace lockstep::kernels::host
