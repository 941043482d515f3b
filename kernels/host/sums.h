// Sums of contiguous elements in double, in one fixed order.
#pragma once

#include <cstdint>

namespace lockstep::kernels::host {

// The sum of term(0) … term(count - 1): sixteen lanes, which the compiler keeps in vector registers.
template <class Term>
double sum_of(std::int64_t count, Term&& term) {
  constexpr std::int64_t kLanes = 16;
  if (count < kLanes) {
    double total = 0;
    for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(term(i));
    return total;
  }
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(term(i + j));
  const std::int64_t rest = count - i;
  for (std::int64_t j = 0; j < rest; ++j) lanes[j] += static_cast<double>(term(i + j));
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

template <class T>
double sum(const T* x, std::int64_t count) {
  return sum_of(count, [x](std::int64_t i) { return x[i]; });
}

}  // namespace lockstep::kernels::host
