// The largest of contiguous elements; NaN is larger than all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/functors.h"

namespace lockstep::kernels::host {

// -infinity of nothing.
template <class C>
C maximum(const C* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 32;  // few enough for registers, too many to be unrolled into scalars
  constexpr C kLowest = -std::numeric_limits<C>::infinity();
  C top = kLowest;
  std::int64_t i = 0;
  if (count >= kLanes) {
    C lanes[kLanes];
    std::fill_n(lanes, kLanes, kLowest);
    for (; i + kLanes <= count; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = functors::larger(x[i + j], lanes[j]);
    for (std::int64_t j = 0; j < kLanes; ++j) top = functors::larger(lanes[j], top);
  }
  for (; i < count; ++i) top = functors::larger(x[i], top);
  return top;
}

}  // namespace lockstep::kernels::host
