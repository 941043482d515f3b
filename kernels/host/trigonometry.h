// Sine and cosine of many floats, without a branch for those of ordinary size.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/mul_add.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {

// Adding it to a number that is smaller than 2^22 rounds to an integer and leaves that integer in the low bits.
inline constexpr float kToInteger = 0x1.8p23f;

// x is nearest to n times pi/2; `quarter` has n, for the cosine n + 1, in its two low bits.
struct Quarter {
  float n;
  std::uint32_t quarter;
};
template <UnaryOp op>
[[gnu::always_inline]] inline Quarter quarter_of(float x) {
  static_assert(op == UnaryOp::sin || op == UnaryOp::cos);
  const float rounded = math::mul_add(x, 0.636619772367581343f, kToInteger);
  return {rounded - kToInteger, std::bit_cast<std::uint32_t>(rounded) + (op == UnaryOp::cos ? 1 : 0)};
}

// The sine of r - beyond and that many quarters, |r| being pi/4 and a little more at most, and beyond far smaller.
[[gnu::always_inline]] inline float sine_of_rest(float r, float beyond, std::uint32_t quarter) {
  const float z = r * r, half = 0.5f * z, nearly = 1.0f - half;
  float s = 1.9515295891e-4f;
  s = math::mul_add(s, z, -8.3321608736e-3f);
  s = math::mul_add(s, z, 1.6666654611e-1f);
  s = r - math::mul_add(s * z, r, beyond);  // -0 for -0
  float c = 2.443315711809948e-5f;
  c = math::mul_add(c, z, -1.388731625493765e-3f);
  c = math::mul_add(c, z, 4.166664568298827e-2f);
  c = nearly + (((1.0f - nearly) - half) + math::mul_add(c * z, z, r * beyond));
  // Chosen by masks: a loop with a branch is not vectorised.
  const std::uint32_t odd = -(quarter & 1), sign = (quarter & 2) << 30;
  const std::uint32_t magnitude = (std::bit_cast<std::uint32_t>(c) & odd) | (std::bit_cast<std::uint32_t>(s) & ~odd);
  return std::bit_cast<float>(magnitude ^ sign);
}

// Both within 1 ulp; the argument is reduced in steps (Cody and Waite, "Software Manual for the Elementary Functions",
// 1980), so that it keeps its digits beside the zeros, and goes on as a float and what rounding took from it.

// For |x| <= kSmallAngle: in float. x less n times the first part of pi/2 is exact, and so is the product of n and the
// second, which has 11 bits; their difference is exact where it is small, and leaves a remainder that is a float
// elsewhere (Dekker, "A floating-point technique for extending the available precision", 1971). No part is above what
// is left of pi/2: of -0 a negative one would make 0.
inline constexpr float kSmallAngle = 1 << 12;
template <UnaryOp op>
[[gnu::always_inline]] inline float small_sine(float x) {
  constexpr float kHalfPi0 = 0x1.921fb4p+0f, kHalfPi1 = 0x1.444p-24f, kHalfPi2 = 0x1.68c234p-39f;
  const auto [n, quarter] = quarter_of<op>(x);
  const float first = math::mul_add(n, -kHalfPi0, x), r = math::mul_add(n, -kHalfPi1, first);
  const float lost = math::mul_add(n, kHalfPi1, r - first);
  return sine_of_rest(r, math::mul_add(n, kHalfPi2, lost), quarter);
}

// For |x| <= kOrdinaryAngle: in double. Up to here the multiples of pi/2 that are taken off have so few bits that their
// product with its first part, of 33 bits, is exact, and the nearest one is found in float, at most 0.03 too far off.
inline constexpr float kOrdinaryAngle = 1 << 20;
template <UnaryOp op>
[[gnu::always_inline]] inline float ordinary_sine(float x) {
  constexpr double kHalfPi0 = 0x1.921fb544p+0, kHalfPi1 = 0x1.0b4611a626331p-34;
  const auto [whole, quarter] = quarter_of<op>(x);
  const double n = whole;
  const double rest = mul_add(n, -kHalfPi1, mul_add(n, -kHalfPi0, static_cast<double>(x)));
  const auto r = static_cast<float>(rest), beyond = static_cast<float>(static_cast<double>(r) - rest);
  return sine_of_rest(r, beyond, quarter);
}

template <UnaryOp op>
void sines(const float* x, float* y, std::int64_t count) {
  constexpr std::int64_t kBlock = 256;
#if defined(__FMA__)
  constexpr float kSmall = kSmallAngle;
#else
  constexpr float kSmall = -1;  // products that are rounded would not do
#endif
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    float in[kBlock];  // y may be x
    int not_small = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      in[i] = x[begin + i];
      not_small += !(std::fabs(in[i]) <= kSmall);
    }
    float* const out = y + begin;
    if (not_small < size) {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = 0; i < size; ++i) out[i] = small_sine<op>(in[i]);
    }
    if (not_small == 0) continue;
    float larger[kBlock];  // what is too large for these, infinite or NaN comes from the C library
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < size; ++i) larger[i] = ordinary_sine<op>(in[i]);
    for (std::int64_t i = 0; i < size; ++i)
      if (!(std::fabs(in[i]) <= kSmall)) out[i] = larger[i];
    for (std::int64_t i = 0; i < size; ++i)
      if (!(std::fabs(in[i]) <= kOrdinaryAngle)) out[i] = op == UnaryOp::sin ? std::sin(in[i]) : std::cos(in[i]);
  }
}

}  // namespace lockstep::kernels::host
