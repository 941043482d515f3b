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
#include <utility>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/each.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

// How an operation joins accumulators, and takes an element x into one: numbers, or registers of them. What it starts
// with changes nothing.
template <class V>
V larger(V a, V b) {
  if constexpr (std::is_arithmetic_v<V>)
    return functors::larger(a, b);
  else
    return ((a > b) | (a != a)) ? a : b;
}
template <class V>
V smaller(V a, V b) {
  if constexpr (std::is_arithmetic_v<V>)
    return functors::smaller(a, b);
  else
    return ((a < b) | (a != a)) ? a : b;
}

template <class A>
struct Add {
  static constexpr bool kSums = true;
  static constexpr A start() { return 0; }
  template <class V>
  static V join(V a, V b) {
    return functors::plus(a, b);
  }
  template <class V>
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
  template <class V>
  static V join(V a, V b) {
    return functors::times(a, b);
  }
  template <class V>
  static V take(V a, V x) {
    return join(a, x);
  }
};
template <class A>
struct Larger {
  using Limits = std::numeric_limits<A>;
  static constexpr A start() { return Limits::has_infinity ? -Limits::infinity() : Limits::min(); }
  template <class V>
  static V join(V a, V b) {
    return larger(a, b);
  }
  template <class V>
  static V take(V a, V x) {
    return larger(a, x);
  }
};
template <class A>
struct Smaller {
  using Limits = std::numeric_limits<A>;
  static constexpr A start() { return Limits::has_infinity ? Limits::infinity() : Limits::max(); }
  template <class V>
  static V join(V a, V b) {
    return smaller(a, b);
  }
  template <class V>
  static V take(V a, V x) {
    return smaller(a, x);
  }
};

constexpr std::int64_t kRun = 4096;  // elements of a fold, at most, for the accuracy of long sums

template <class J>
concept Sums = requires {
  J::kSums;
};

// As many numbers as a register has doubles.
template <class T>
struct FewOf {
  typedef T type __attribute__((vector_size(kWidth<double> * sizeof(T))));
};
template <class T>
using Few = typename FewOf<T>::type;
template <class T>
Few<T> load_few(const T* from) {
  Few<T> few;
  std::memcpy(&few, from, sizeof few);
  return few;
}
inline Vector<double> widened(const Few<float>& x) {
#ifdef __AVX__
  return _mm256_cvtps_pd(x);  // g++ 12 makes three instructions, through memory, of what stands below
#else
  return __builtin_convertvector(x, Vector<double>);
#endif
}
inline Vector<double> widened(const float* x) { return widened(load_few(x)); }

// As many elements as a register of A has.
inline Vector<float> in_register(const float* x, float) { return load(x); }
inline Vector<double> in_register(const double* x, double) { return load(x); }
inline Vector<double> in_register(const float* x, double) { return widened(x); }

// The first `count` of them, and behind these `other`. Memory behind them is not touched.
template <class L, class A>
Vector<A> first_in_register(const L* x, std::int64_t count, A other) {
  Vector<A> numbers, places;
  for (int j = 0; j < kWidth<A>; ++j) places[j] = static_cast<A>(j);
  if constexpr (std::is_same_v<L, A>) {
    numbers = load_first(x, count);
  } else {
#if defined(__AVX2__)
    const __m128i among = _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(count)), _mm_setr_epi32(0, 1, 2, 3));
    numbers = _mm256_cvtps_pd(_mm_maskload_ps(x, among));
#else
    float few[kWidth<float>];
    store<float>(load_first(x, count), few);
    numbers = widened(few);
#endif
  }
  return places < static_cast<A>(count) ? numbers : Vector<A>{} + other;
}

// The lanes of a register as a tree, the upper half with the lower.
template <class J, class A, int... I>
A join_lanes(Vector<A> v, std::integer_sequence<int, I...>) {
  constexpr int kLanes = kWidth<A>;
  if constexpr (kLanes >= 8) v = J::join(v, __builtin_shufflevector(v, v, (I + 4) % kLanes...));
  if constexpr (kLanes >= 4) v = J::join(v, __builtin_shufflevector(v, v, (I + 2) % kLanes...));
  v = J::join(v, __builtin_shufflevector(v, v, (I + 1) % kLanes...));
  return v[0];
}

// The fold of `count` elements in kLanes accumulators, which are then joined as a tree.
template <class J, class L, class A>
A fold(const L* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 256 / sizeof(A);
  const std::int64_t rest = count % kLanes, whole = count - rest;
  // Written out for registers: compilers leave the accumulators in memory, and then sums do not keep up with it.
  if constexpr (std::is_floating_point_v<L> && std::is_floating_point_v<A>) {
    constexpr std::int64_t kAtOnce = kWidth<A>, kRegisters = kLanes / kAtOnce;
    Vector<A> all[std::size_t{kRegisters}];
    each<kRegisters>([&](auto r) { all[r] = Vector<A>{} + J::start(); });
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      // One stream of loads alone does not keep memory busy.
      __builtin_prefetch(x + i + 1024);
      __builtin_prefetch(x + i + 1040);
      each<kRegisters>([&](auto r) { all[r] = J::take(all[r], in_register(x + i + r * kAtOnce, A())); });
    }
    if (rest > 0)
      each<kRegisters>([&](auto r) {
        const std::int64_t left = rest - r * kAtOnce;
        if (left >= kAtOnce)
          all[r] = J::take(all[r], in_register(x + whole + r * kAtOnce, A()));
        else if (left > 0)  // made whole by elements that change nothing
          all[r] = J::take(all[r], first_in_register<L, A>(x + whole + r * kAtOnce, left, J::start()));
      });
    const auto join_halves = [&](auto half) { each<half>([&](auto r) { all[r] = J::join(all[r], all[r + half]); }); };
    static_assert(kRegisters == 8 || kRegisters == 16);
    if constexpr (kRegisters == 16) join_halves(std::integral_constant<int, 8>());
    join_halves(std::integral_constant<int, 4>());
    join_halves(std::integral_constant<int, 2>());
    join_halves(std::integral_constant<int, 1>());
    return join_lanes<J, A>(all[0], std::make_integer_sequence<int, kWidth<A>>());
  } else {
    A lanes[std::size_t{kLanes}];
    std::int64_t width = kLanes;
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = J::start();
    for (std::int64_t i = 0; i < whole; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = J::take(lanes[j], static_cast<A>(x[i + j]));
    for (std::int64_t j = 0; j < rest; ++j) lanes[j] = J::take(lanes[j], static_cast<A>(x[whole + j]));
    while (width / 2 >= count && width > 1) width /= 2;  // a short run has not touched the upper lanes
    for (width /= 2; width > 0; width /= 2)
      for (std::int64_t j = 0; j < width; ++j) lanes[j] = J::join(lanes[j], lanes[j + width]);
    return lanes[0];
  }
}

}  // namespace lockstep::kernels::host
