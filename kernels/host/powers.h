// log1p, expm1 and powers of floats for rows: without branches, so that they become vector code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/host/mul_add.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {

// The logarithm of 1 + x: what rounding took from the sum, over the sum, is added to the sum's. Where x is above 1 that
// is not all of it, but does not matter. The error is below 1.5 ulp.
inline float log1p(float x) {
  const float y = 1.0f + x;
  float log = math::log_of_normal(y, 0.0f) + (x - (y - 1.0f)) / y;
  log = math::select(y == 0.0f, -std::numeric_limits<float>::infinity(), log);
  log = math::select(y < 0.0f, std::numeric_limits<float>::quiet_NaN(), log);
  // Zero keeps its sign; infinity and NaN stay what they are.
  return math::select((x != 0.0f) & (x < std::numeric_limits<float>::infinity()), log, x);
}

// e^x - 1 as 2^n (e^r - 1) + (2^n - 1), which for n = 0 is e^r - 1. The error is below 1.5 ulp.
inline float expm1(float x) {
  // Below -20 it is -1, above 89 infinity; NaN passes.
  const float low = math::select(x < -20.0f, -20.0f, x), y = math::select(low > 89.0f, 89.0f, low);
  const float rounded = math::mul_add(y, 1.44269504088896341f, 12582912.0f);  // as in math::exp_parts
  const float n = rounded - 12582912.0f;
  float r = math::mul_add(n, -0.693359375f, y);
  r = math::mul_add(n, 2.12194440e-4f, r);
  float p = 1.98909808698e-4f;
  p = math::mul_add(p, r, 1.3933641032e-3f);
  p = math::mul_add(p, r, 8.33331093445e-3f);
  p = math::mul_add(p, r, 4.1666465006e-2f);
  p = math::mul_add(p, r, 1.66666666816e-1f);
  p = math::mul_add(p, r, 5.00000001346e-1f);
  p = math::mul_add(p * r, r, r);
  // Half of 2^n is a float even where the result is just below infinity.
  const float half = std::bit_cast<float>((std::bit_cast<std::uint32_t>(rounded) - 0x4b400000u + 126u) << 23);
  const float result = 2.0f * math::mul_add(half, p, half - 0.5f);
  return math::select(std::fabs(x) < 0x1p-25f, x, result);  // with zero's sign, and no numbers below the normal ones
}

// The logarithm to the base 2 of positive finite x, not below the normal numbers: a polynomial that meets it at
// Chebyshev's points, to 3e-12.
[[gnu::always_inline]] inline double log2_of_positive(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)). The power of two becomes a number by its place in the bits: few
  // processors convert 64-bit integers. It is kept positive for that, from 2^-1022 on.
  constexpr std::uint64_t kRootHalf = 0x3fe6a09e667f3bcd, kOne = 0x3ff0000000000000, kMantissa = 0x000fffffffffffff;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) - kRootHalf + kOne;
  const double e = std::bit_cast<double>((bits >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  const double f = std::bit_cast<double>((bits & kMantissa) + kRootHalf) - 1.0;
  double p = -0.068062875903905961;
  p = mul_add(p, f, 0.13113743753686684);
  p = mul_add(p, f, -0.13478928738366043);
  p = mul_add(p, f, 0.13062890256021096);
  p = mul_add(p, f, -0.14252340755410016);
  p = mul_add(p, f, 0.16018226130296026);
  p = mul_add(p, f, -0.18043268521020117);
  p = mul_add(p, f, 0.20610869528306625);
  p = mul_add(p, f, -0.24044662677727304);
  p = mul_add(p, f, 0.28853876232996746);
  p = mul_add(p, f, -0.36067378977100696);
  p = mul_add(p, f, 0.48089834907279608);
  p = mul_add(p, f, -0.72134752034308632);
  p = mul_add(p, f, 1.4426950408862033);
  return mul_add(p, f, e);
}

// The logarithm of a number from 2^-1022 to 2^1022, infinity or NaN.
[[gnu::always_inline]] inline double log_of_positive(double x) {
  return math::select(x < std::numeric_limits<double>::infinity(), 0.69314718055994530942 * log2_of_positive(x), x);
}

// x^y for positive finite x that is a float, and any y; as double no float is below the normal numbers. In double: y
// magnifies the logarithm's error up to 150 times. The power of two meets a polynomial as the logarithm does, to 6e-11.
[[gnu::always_inline]] inline double power_of_positive(double x, double y) {
  constexpr std::uint64_t kOne = 0x3ff0000000000000;
  double z = y * log2_of_positive(x);
  // Beyond these it is 0 or infinity as a float; NaN passes.
  const bool zero = z < -150.0;
  z = math::select(z > 130.0, 130.0, z);
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer and leaves that integer in the low bits
  const double rounded = z + kRound, r = z - (rounded - kRound);
  double q = 1.5303700711365694e-5;
  q = mul_add(q, r, 1.5469729214118297e-4);
  q = mul_add(q, r, 1.3333478473685415e-3);
  q = mul_add(q, r, 9.6180256133180342e-3);
  q = mul_add(q, r, 5.5504109063258666e-2);
  q = mul_add(q, r, 0.24022651213498093);
  q = mul_add(q, r, 0.69314718055683241);
  q = mul_add(q, r, 0.99999999995956175);
  const double scale = std::bit_cast<double>((std::bit_cast<std::uint64_t>(rounded) << 52) + kOne);
  return math::select(zero, 0.0, q * scale);
}

// x^y of any floats, as the C library has it; the error is below 0.51 ulp.
[[gnu::always_inline]] inline float power(float x, float y) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float magnitude = std::fabs(x);
  float result = static_cast<float>(power_of_positive(magnitude, y));
  const bool zero = magnitude == 0.0f;
  result = math::select(zero | (magnitude == kInf), math::select((y < 0.0f) == zero, kInf, 0.0f), result);
  // Of a negative number only whole powers exist, and odd ones are negative.
  const float half = 0.5f * y;
  const bool whole = std::rint(y) == y, odd = whole & (std::rint(half) != half);
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & (static_cast<std::uint32_t>(odd) << 31);
  result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) | sign);
  const bool none = (x < 0.0f) & (x > -kInf) & !whole, unknown = (x != x) | (y != y);
  result = math::select(none | unknown, std::numeric_limits<float>::quiet_NaN(), result);
  // Even of NaN.
  const bool one = (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (std::fabs(y) == kInf));
  return math::select(one, 1.0f, result);
}

}  // namespace lockstep::kernels::host
