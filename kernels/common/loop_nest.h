// Loops over several views of one shape: dimensions of size 1 are dropped, the others sorted so that the first view
// (the output) is walked in memory order, and neighbours that form one run in every view are merged. A contiguous
// operation of any rank becomes one loop.
#pragma once

#include <array>
#include <utility>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

template <std::size_t N>
struct LoopNest {
  int rank = 0;                       // 0: one element
  bool empty = false;                 // no elements at all
  std::int64_t sizes[kMaxRank];       // innermost first
  std::int64_t strides[kMaxRank][N];  // elements

  std::int64_t inner_size() const { return rank == 0 ? 1 : sizes[0]; }
  std::int64_t inner_stride(std::size_t view) const { return rank == 0 ? 1 : strides[0][view]; }
};

namespace detail {

template <std::size_t N>
bool belongs_inside(const std::int64_t* a, const std::int64_t* b) {
  for (std::size_t v = 0; v < N; ++v)
    if (a[v] != b[v]) return a[v] < b[v];
  return false;
}

}  // namespace detail

template <std::size_t N>
LoopNest<N> make_loop_nest(const Shape& shape, const std::array<const View*, N>& views) {
  LoopNest<N> nest;
  bool sorted = true;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (shape[d] == 0) nest.empty = true;
    const int i = nest.rank++;
    nest.sizes[i] = shape[d];
    for (std::size_t v = 0; v < N; ++v) nest.strides[i][v] = views[v]->strides[d];
    if (i > 0 && nest.strides[i][0] < nest.strides[i - 1][0]) sorted = false;
  }
  if (!sorted) [[unlikely]] {
    for (int i = 1; i < nest.rank; ++i)
      for (int j = i; j > 0 && detail::belongs_inside<N>(nest.strides[j], nest.strides[j - 1]); --j) {
        std::swap(nest.sizes[j], nest.sizes[j - 1]);
        for (std::size_t v = 0; v < N; ++v) std::swap(nest.strides[j][v], nest.strides[j - 1][v]);
      }
  }
  int last = 0;
  for (int i = 1; i < nest.rank; ++i) {
    bool joins = true;
    for (std::size_t v = 0; v < N; ++v) joins &= nest.strides[i][v] == nest.strides[last][v] * nest.sizes[last];
    if (joins) {
      nest.sizes[last] *= nest.sizes[i];
      continue;
    }
    if (++last == i) continue;
    nest.sizes[last] = nest.sizes[i];
    for (std::size_t v = 0; v < N; ++v) nest.strides[last][v] = nest.strides[i][v];
  }
  if (nest.rank > 0) nest.rank = last + 1;
  return nest;
}

// Calls `row(offsets)` for every position of the dimensions from `first` outwards; offsets are in elements.
template <std::size_t N, class Row>
void for_each_row(const LoopNest<N>& nest, Row&& row, int first = 1) {
  std::array<std::int64_t, N> offsets{};
  if (nest.empty) return;
  std::int64_t index[kMaxRank] = {};
  while (true) {
    row(std::as_const(offsets));
    int d = first;
    for (; d < nest.rank; ++d) {
      if (++index[d] < nest.sizes[d]) {
        for (std::size_t v = 0; v < N; ++v) offsets[v] += nest.strides[d][v];
        break;
      }
      index[d] = 0;
      for (std::size_t v = 0; v < N; ++v) offsets[v] -= (nest.sizes[d] - 1) * nest.strides[d][v];
    }
    if (d >= nest.rank) return;
  }
}

}  // namespace lockstep::kernels
