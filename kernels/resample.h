// The linear maps of resample2d along one dimension, for every backend: which elements of the source an element of the
// result is made of. Formulas and rounding are PyTorch's.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/kernels/hd.h"
#include "lockstep/kernels/layer_args.h"

namespace lockstep::kernels {

struct ResampleAxis {
  std::int64_t source, result;  // sizes
  ResampleKind kind;
  double step;
  bool align_corners;

  LOCKSTEP_HD std::int64_t over_result(std::int64_t n) const { return n / result; }
  LOCKSTEP_HD std::int64_t over_source(std::int64_t n) const { return n / source; }
};

// source[first … first + count), consecutive elements; those of an average have one weight.
template <class C>
struct Taps {
  std::int64_t first, count;
  C weights[2];
  LOCKSTEP_HD C weight(std::int64_t k) const { return k == 0 ? weights[0] : weights[1]; }
  LOCKSTEP_HD std::int64_t end() const { return first + count; }
};

// Of element `at` of the result. `first` and `end` never decrease with `at`. Axis: ResampleAxis, or one that divides in
// another way.
template <class C, class Axis>
LOCKSTEP_HD inline Taps<C> taps_of(const Axis& a, std::int64_t at) {
  if (a.kind == ResampleKind::average) {
    const std::int64_t first = a.over_result(at * a.source);
    const std::int64_t count = a.over_result((at + 1) * a.source + a.result - 1) - first;
    const C share = C(1) / static_cast<C>(count);
    return {first, count, {share, share}};
  }
  const std::int64_t last = a.source - 1;
  if (a.kind == ResampleKind::nearest) {
    // In float whatever the elements are, as PyTorch has it: rounding decides which of two is the nearest.
    const auto first = static_cast<std::int64_t>(std::floor(static_cast<float>(at) * static_cast<float>(a.step)));
    return {first < last ? first : last, 1, {C(1), C(0)}};
  }
  const C step = static_cast<C>(a.step), position = static_cast<C>(at);
  C from = a.align_corners ? step * position : step * (position + C(0.5)) - C(0.5);
  if (from < C(0)) from = C(0);
  const auto floor = static_cast<std::int64_t>(from);
  if (floor >= last) return {last, 1, {C(1), C(0)}};
  const C rest = from - static_cast<C>(floor);
  return {floor, 2, {C(1) - rest, rest}};
}

// The first element of the result that is made of source element `from` or a later one.
template <class C, class Axis>
LOCKSTEP_HD inline std::int64_t first_result_of(const Axis& a, std::int64_t from) {
  std::int64_t at = a.over_source(from * a.result);  // a guess, which rounding and a given step may put off
  if (at >= a.result) at = a.result - 1;
  while (at > 0 && taps_of<C>(a, at - 1).end() > from) --at;
  while (at < a.result && taps_of<C>(a, at).end() <= from) ++at;
  return at;
}

}  // namespace lockstep::kernels
