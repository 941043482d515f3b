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

// pi/2 in two parts; the first has 33 bits.
inline constexpr double kHalfPi0 = 0x1.921fb544p+0, kHalfPi1 = 0x1.0b4611a626331p-34;

// Up to here the multiples of pi/2 that are taken off have so few bits that their product with kHalfPi0 is exact, and
// the nearest one is found in float, at most 0.03 too far off.
inline constexpr float kOrdinaryAngle = 1 << 20;

// For |x| <= kOrdinaryAngle, within 1 ulp. The argument is reduced in double, in two steps (Cody and Waite, "Software
// Manual for the Elementary Functions", 1980), so that it keeps its digits beside the zeros, and goes on as a float and
// what rounding took from it. A function of x alone, however a loop of it is vectorised.
template <UnaryOp op>
[[gnu::always_inline]] inline float ordinary_sine(float x) {
  static_assert(op == UnaryOp::sin || op == UnaryOp::cos);
  // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.
  constexpr float kRound = 0x1.8p23f;
  const float rounded = math::mul_add(x, 0.636619772367581343f, kRound);
  const std::uint32_t quarter = std::bit_cast<std::uint32_t>(rounded) + (op == UnaryOp::cos ? 1 : 0);
  const double n = rounded - kRound;
  const double rest = mul_add(n, -kHalfPi1, mul_add(n, -kHalfPi0, static_cast<double>(x)));
  const auto r = static_cast<float>(rest), beyond = static_cast<float>(static_cast<double>(r) - rest);
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
