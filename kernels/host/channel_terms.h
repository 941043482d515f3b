// What the normalisations sum up for each channel, in double: terms of elements and their channels, read one by one, or
// as a few of one channel or of neighbouring ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/host/fold.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/vector.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {

inline constexpr std::int64_t kDoubles = kWidth<double>;

// How a term of a sum reads its numbers: `elements` are those of a tensor, `channel` is what belongs to their channels.
struct Number {
  template <class C>
  static C elements(const C* from) {
    return *from;
  }
  template <class T>
  static T channel(const T* from) {
    return *from;
  }
  template <class C>
  static double wide(C x) {
    return static_cast<double>(x);
  }
  template <class C>
  static C where_above(C y, C edge, C x) {
    return math::select(y <= edge, C(0), x);  // NaN passes
  }
};
struct InPlane : Number {  // a few, of one channel
  template <class C>
  static Few<C> elements(const C* from) {
    return load_few(from);
  }
  static Vector<double> wide(const Few<double>& x) { return x; }
  static Vector<double> wide(const Few<float>& x) { return widened(x); }
  template <class F, class C>
  static F where_above(const F& y, C edge, const F& x) {
    return y <= edge ? F{} : x;
  }
};
struct InRow : InPlane {  // a few, of a channel each
  template <class T>
  static Few<T> channel(const T* from) {
    return load_few(from);
  }
};

struct TwoRegisters {
  Vector<double> first, second;
};
inline Two both(double first, double second) { return {first, second}; }
inline TwoRegisters both(const Vector<double>& first, const Vector<double>& second) { return {first, second}; }

// Distances from a pivot, and their squares.
template <class C>
struct Distances {
  using Element = C;
  const C* x;
  const double* pivots;

  template <class As>
  auto operator()(As, std::int64_t i, std::int64_t c) const {
    const auto distance = As::wide(As::elements(x + i)) - As::channel(pivots + c);
    return both(distance, distance * distance);
  }
  void prefetch(std::int64_t i) const { __builtin_prefetch(x + i); }
};

// The result, from x.
template <class C>
struct Affine {
  const C *centre, *scale, *shift;

  template <class As>
  auto operator()(As, const C* x, std::int64_t c) const {
    return (As::elements(x) - As::channel(centre + c)) * As::channel(scale + c) + As::channel(shift + c);
  }
};

// Below which a result is 0, and passes no gradient: no number has a place below NaN.
template <class C>
C edge_of(bool relu) {
  return relu ? C(0) : std::numeric_limits<C>::quiet_NaN();
}

// Gradients, and their products with distances from the mean.
template <class C, bool kCuts>
struct GradientProducts {
  using Element = C;
  const C *dy, *x;
  const double* means;
  Affine<C> y;
  C edge;

  template <class As>
  auto operator()(As as, std::int64_t i, std::int64_t c) const {
    auto gradient = As::elements(dy + i);
    if constexpr (kCuts) gradient = As::where_above(y(as, x + i, c), edge, gradient);
    const auto wide = As::wide(gradient);
    return both(wide, wide * (As::wide(As::elements(x + i)) - As::channel(means + c)));
  }
  void prefetch(std::int64_t i) const { __builtin_prefetch(dy + i), __builtin_prefetch(x + i); }
};

// The two sums of term(i, c) over the elements i of some rows of channels, added to what each channel c has.
template <class Term>
void sum_rows(std::int64_t begin, std::int64_t end, std::int64_t channels, double* first, double* second,
              const Term& term) {
  constexpr std::int64_t kRows = 8;  // sums are taken from memory and brought back once for so many
  // The processor does not see what comes next to who walks across rows. Measured: up to 1.6 times as fast.
  constexpr std::int64_t kRowsAhead = 2 * kRows, kLine = 64 / sizeof(typename Term::Element);
  for (std::int64_t n = begin; n < end; n += kRows) {
    const std::int64_t stop = std::min(n + kRows, end);
    std::int64_t c = 0;
    for (; c + kDoubles <= channels; c += kDoubles) {
      Vector<double> all = load(first + c), other = load(second + c);
      const bool new_line = c % kLine == 0;
      for (std::int64_t row = n; row < stop; ++row) {
        if (new_line) term.prefetch((row + kRowsAhead) * channels + c);
        const TwoRegisters of = term(InRow(), row * channels + c, c);
        all += of.first, other += of.second;
      }
      store<double>(all, first + c);
      store<double>(other, second + c);
    }
    for (; c < channels; ++c) {
      Two sums{first[c], second[c]};
      for (std::int64_t row = n; row < stop; ++row) {
        const Two of = term(Number(), row * channels + c, c);
        sums.first += of.first, sums.second += of.second;
      }
      first[c] = sums.first, second[c] = sums.second;
    }
  }
}

}  // namespace lockstep::kernels::host
