// What a reduction does with contiguous elements: the operations, and the fold of one run in an order that the count
// alone decides.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

// How an operation joins accumulators, and takes an element x into one.
template <class A>
struct Add {
  static constexpr bool kSums = true;
  static constexpr A start() { return 0; }
  static A join(A a, A b) { return functors::plus(a, b); }
  template <class V>  // A, or a register of them
  static V take(V a, V x) {
    return functors::plus(a, x);
  }
};
template <class A>
struct AddSquares : Add<A> {
  template <class V>
  static V take(V a, V x) {
    return a + x * x;
  }
};
template <class A>
struct Multiply {
  static constexpr A start() { return 1; }
  static A join(A a, A b) { return functors::times(a, b); }
  static A take(A a, A x) { return join(a, x); }
};
template <class A>
struct Larger {
  using Limits = std::numeric_limits<A>;
  static constexpr A start() { return Limits::has_infinity ? -Limits::infinity() : Limits::min(); }
  static A join(A a, A b) { return functors::larger(a, b); }
  static A take(A a, A x) { return join(a, x); }
};
template <class A>
struct Smaller {
  using Limits = std::numeric_limits<A>;
  static constexpr A start() { return Limits::has_infinity ? Limits::infinity() : Limits::max(); }
  static A join(A a, A b) { return functors::smaller(a, b); }
  static A take(A a, A x) { return join(a, x); }
};

constexpr std::int64_t kRun = 4096;  // elements of a fold, at most, for the accuracy of long sums

template <class J>
concept Sums = requires {
  J::kSums;
};

// As many floats as a register has doubles.
inline Vector<double> widened(const float* x) {
#ifdef __AVX__
  return _mm256_cvtps_pd(_mm_loadu_ps(x));  // g++ 12 makes three instructions, through memory, of what stands below
#else
  typedef float Floats __attribute__((vector_size(kVectorBytes / 2)));
  Floats floats;
  std::memcpy(&floats, x, sizeof floats);
  return __builtin_convertvector(floats, Vector<double>);
#endif
}

// Takes groups of kLanes elements, and returns how many that were. The sums of floats in double, which keep up with
// memory only when every register is used, are written out: compilers leave the accumulators in memory.
template <class J, class L, class A, std::size_t kCount>
std::int64_t take_groups(const L* x, std::int64_t count, A (&lanes)[kCount]) {
  constexpr auto kLanes = static_cast<std::int64_t>(kCount);
  std::int64_t i = 0;
  if constexpr (Sums<J> && std::is_same_v<L, float> && std::is_same_v<A, double>) {
    constexpr std::int64_t kAtOnce = kWidth<double>, kRegisters = kLanes / kAtOnce;
    Vector<double> sums[std::size_t{kRegisters}];
    for (std::int64_t r = 0; r < kRegisters; ++r) sums[r] = load(lanes + r * kAtOnce);
    for (; i + kLanes <= count; i += kLanes) {
      // One stream of loads alone does not keep memory busy.
      __builtin_prefetch(x + i + 1024);
      __builtin_prefetch(x + i + 1040);
#pragma GCC unroll 16
      for (std::int64_t r = 0; r < kRegisters; ++r) {
        sums[r] = J::take(sums[r], widened(x + i + r * kAtOnce));
      }
    }
    for (std::int64_t r = 0; r < kRegisters; ++r) store<double>(sums[r], lanes + r * kAtOnce);
  } else {
    for (; i + kLanes <= count; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = J::take(lanes[j], static_cast<A>(x[i + j]));
  }
  return i;
}

template <class J, class L, class A>
A fold(const L* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 256 / sizeof(A);
  A lanes[std::size_t{kLanes}];
  for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = J::start();
  const std::int64_t i = take_groups<J, L, A>(x, count, lanes);
  const std::int64_t rest = count - i;
  for (std::int64_t j = 0; j < rest; ++j) lanes[j] = J::take(lanes[j], static_cast<A>(x[i + j]));
  std::int64_t width = kLanes;
  while (width / 2 >= count && width > 1) width /= 2;  // a short run has not touched the upper lanes
  for (width /= 2; width > 0; width /= 2)
    for (std::int64_t j = 0; j < width; ++j) lanes[j] = J::join(lanes[j], lanes[j + width]);
  return lanes[0];
}

}  // namespace lockstep::kernels::host
