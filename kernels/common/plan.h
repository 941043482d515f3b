// Loops over several views of one shape: dimensions of size 1 are dropped, the others sorted so that the first view
// (the output) is walked in memory order, and neighbours that form one run in every view are merged. A contiguous
// operation of any rank becomes one loop.
#pragma once

#include <array>
#include <utility>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels::host {

template <int N>
struct Plan {
  int rank = 0;                       // 0: one element
  bool empty = false;                 // no elements at all
  std::int64_t sizes[kMaxRank];       // innermost first
  std::int64_t strides[kMaxRank][N];  // elements

  std::int64_t inner_size() const { return rank == 0 ? 1 : sizes[0]; }
  std::int64_t inner_stride(int view) const { return rank == 0 ? 1 : strides[0][view]; }
};

namespace detail {

template <int N>
bool belongs_inside(const std::int64_t* a, const std::int64_t* b) {
  for (int v = 0; v < N; ++v)
    if (a[v] != b[v]) return a[v] < b[v];
  return false;
}

}  // namespace detail

template <int N>
Plan<N> make_plan(const Shape& shape, const std::array<const View*, N>& views) {
  Plan<N> plan;
  bool sorted = true;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (shape[d] == 0) plan.empty = true;
    const int i = plan.rank++;
    plan.sizes[i] = shape[d];
    for (int v = 0; v < N; ++v) plan.strides[i][v] = views[v]->strides[d];
    if (i > 0 && plan.strides[i][0] < plan.strides[i - 1][0]) sorted = false;
  }
  if (!sorted) [[unlikely]] {
    for (int i = 1; i < plan.rank; ++i)
      for (int j = i; j > 0 && detail::belongs_inside<N>(plan.strides[j], plan.strides[j - 1]); --j) {
        std::swap(plan.sizes[j], plan.sizes[j - 1]);
        for (int v = 0; v < N; ++v) std::swap(plan.strides[j][v], plan.strides[j - 1][v]);
      }
  }
  int last = 0;
  for (int i = 1; i < plan.rank; ++i) {
    bool joins = true;
    for (int v = 0; v < N; ++v) joins &= plan.strides[i][v] == plan.strides[last][v] * plan.sizes[last];
    if (joins) {
      plan.sizes[last] *= plan.sizes[i];
      continue;
    }
    if (++last == i) continue;
    plan.sizes[last] = plan.sizes[i];
    for (int v = 0; v < N; ++v) plan.strides[last][v] = plan.strides[i][v];
  }
  if (plan.rank > 0) plan.rank = last + 1;
  return plan;
}

// Calls `row(offsets)` for every position of the dimensions from `first` outwards; offsets are in elements.
template <int N, class Row>
void for_each_row(const Plan<N>& plan, Row&& row, int first = 1) {
  std::array<std::int64_t, N> offsets{};
  if (plan.empty) return;
  std::int64_t index[kMaxRank] = {};
  while (true) {
    row(std::as_const(offsets));
    int d = first;
    for (; d < plan.rank; ++d) {
      if (++index[d] < plan.sizes[d]) {
        for (int v = 0; v < N; ++v) offsets[v] += plan.strides[d][v];
        break;
      }
      index[d] = 0;
      for (int v = 0; v < N; ++v) offsets[v] -= (plan.sizes[d] - 1) * plan.strides[d][v];
    }
    if (d >= plan.rank) return;
  }
}

}  // namespace lockstep::kernels::host
