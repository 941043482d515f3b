// Sine and cosine of many floats, without a branch for those of ordinary size.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/host/independent.h"

namespace lockstep::kernels::host {

// Up to here the multiples of pi/2 that are taken off have so few bits that their product with kHalfPi0 is exact.
inline constexpr float kOrdinaryAngle = 1 << 20;

// For |x| <= kOrdinaryAngle. In double, with the argument reduced in two steps (Cody and Waite, "Software Manual for
// the Elementary Functions", 1980) and polynomials that meet the functions at Chebyshev's points, to 8e-14: what is
// left of the error is the rounding to float. A function of x alone, however a loop of it is vectorised.
template <UnaryOp op>
[[gnu::always_inline]] inline float ordinary_sine(float x) {
  static_assert(op == UnaryOp::sin || op == UnaryOp::cos);
  constexpr double kHalfPi0 = 0x1.921fb544p+0, kHalfPi1 = 0x1.0b4611a626331p-34;  // the first has 33 bits
  // Adding 1.5 * 2^52 rounds to an integer and leaves that integer in the low bits.
  constexpr double kRound = 0x1.8p52;
  const double rounded = static_cast<double>(x) * 0x1.45f306dc9c883p-1 + kRound;
  const auto quarter = std::bit_cast<std::uint64_t>(rounded) + (op == UnaryOp::cos ? 1 : 0);
  const double n = rounded - kRound;
  const double r = (static_cast<double>(x) - n * kHalfPi0) - n * kHalfPi1, z = r * r;
  double s = -2.47564999842978e-08;
  s = s * z + 2.7555271077319583e-06;
  s = s * z - 0.00019841263294474436;
  s = s * z + 0.0083333333238705988;
  s = s * z - 0.16666666666616636;
  s = (s * z + 0.99999999999999567) * r;
  double c = -2.7173353546655085e-07;
  c = c * z + 2.4798927696218343e-05;
  c = c * z - 0.0013888880388694021;
  c = c * z + 0.041666666543813194;
  c = c * z - 0.4999999999935047;
  c = c * z + 0.99999999999994438;
  // Chosen by masks: a loop with a branch is not vectorised.
  const std::uint64_t odd = -(quarter & 1), sign = (quarter & 2) << 62;
  const std::uint64_t magnitude = (std::bit_cast<std::uint64_t>(c) & odd) | (std::bit_cast<std::uint64_t>(s) & ~odd);
  return static_cast<float>(std::bit_cast<double>(magnitude ^ sign));
}

template <UnaryOp op>
void sines(const float* x, float* y, std::int64_t count) {
  constexpr std::int64_t kBlock = 256;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    float in[kBlock];  // y may be x
    int others = 0;    // larger ones, infinity, NaN
    for (std::int64_t i = 0; i < size; ++i) {
      in[i] = x[begin + i];
      others += !(std::fabs(in[i]) <= kOrdinaryAngle);
    }
    float* const out = y + begin;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < size; ++i) out[i] = ordinary_sine<op>(in[i]);
    for (std::int64_t i = 0; others > 0 && i < size; ++i)
      if (!(std::fabs(in[i]) <= kOrdinaryAngle)) out[i] = op == UnaryOp::sin ? std::sin(in[i]) : std::cos(in[i]);
  }
}

}  // namespace lockstep::kernels::host
