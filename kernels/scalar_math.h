// Scalar mathematics that the kernels are built from. On the host the float versions are short polynomials that the
// compiler turns into vector code (no tables, no branches, no errno); double and CUDA use the platform's functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/hd.h"

namespace lockstep::math {

// condition ? a : b without a branch: with trapping floating point (the default) compilers keep the branch, and a loop
// with a branch is not vectorised.
template <class T>
LOCKSTEP_HD inline T select(bool condition, T a, T b) {
#if !defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) {
    const std::uint32_t mask = -static_cast<std::uint32_t>(condition);
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) | (std::bit_cast<std::uint32_t>(b) & ~mask));
  } else if constexpr (std::is_same_v<T, double>) {
    const std::uint64_t mask = -static_cast<std::uint64_t>(condition);
    return std::bit_cast<double>((std::bit_cast<std::uint64_t>(a) & mask) | (std::bit_cast<std::uint64_t>(b) & ~mask));
  }
#endif
  return condition ? a : b;
}

// a * b + c; fused where the processor has the instruction (elsewhere a fused one costs a library call).
LOCKSTEP_HD inline float mul_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__CUDA_ARCH__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

LOCKSTEP_HD inline double exp(double x) { return std::exp(x); }
LOCKSTEP_HD inline double exp_of_negative(double x) { return std::exp(x); }
LOCKSTEP_HD inline double log(double x) { return std::log(x); }
LOCKSTEP_HD inline double log1p(double x) { return std::log1p(x); }
LOCKSTEP_HD inline double tanh(double x) { return std::tanh(x); }
// Sine and cosine of `turns` full turns, for turns in [0, 1].
LOCKSTEP_HD inline void sin_cos_turns(double turns, double* sine, double* cosine) {
  const double angle = 6.283185307179586476925 * turns;
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
LOCKSTEP_HD inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -0.70710678118654752440); }
// The derivative of x * normal_cdf(x).
LOCKSTEP_HD inline double gelu_slope(double x) {
  return normal_cdf(x) + x * (0.39894228040143267794 * std::exp(-0.5 * (x * x)));
}

#if defined(__CUDA_ARCH__)

LOCKSTEP_HD inline float exp(float x) { return ::expf(x); }
LOCKSTEP_HD inline float exp_of_negative(float x) { return ::expf(x); }
LOCKSTEP_HD inline float log(float x) { return ::logf(x); }
LOCKSTEP_HD inline float log1p(float x) { return ::log1pf(x); }
LOCKSTEP_HD inline float tanh(float x) { return ::tanhf(x); }
LOCKSTEP_HD inline void sin_cos_turns(float turns, float* sine, float* cosine) { ::sincospif(2 * turns, sine, cosine); }
LOCKSTEP_HD inline float normal_cdf(float x) { return 0.5f * ::erfcf(x * -0.70710678f); }
LOCKSTEP_HD inline float gelu_slope(float x) { return normal_cdf(x) + x * (0.398942280f * ::expf(-0.5f * (x * x))); }

#else

// e^y = mantissa * 2^power.
struct ExpParts {
  float mantissa;
  std::int32_t power;
};

// For y in [-150, 89], or NaN.
inline ExpParts exp_parts(float y) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.
  const float rounded = mul_add(y, 1.44269504088896341f, 12582912.0f);
  const auto power = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(rounded) - 0x4b400000u);
  const float n = rounded - 12582912.0f;
  float r = mul_add(n, -0.693359375f, y);
  r = mul_add(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = mul_add(p, r, 1.3981999507e-3f);
  p = mul_add(p, r, 8.3334519073e-3f);
  p = mul_add(p, r, 4.1665795894e-2f);
  p = mul_add(p, r, 1.6666665459e-1f);
  p = mul_add(p, r, 5.0000001201e-1f);
  return {mul_add(p * r, r, r) + 1.0f, power};
}

// Where the result is 0 no product on the way may be below the normal numbers: processors are a hundred times slower
// there, and the masked scores of attention are all of that kind.

// exp(x) for x that is not positive, or NaN.
inline float exp_of_negative(float x) {
  // The least exponent, -151, gives the factor 0.
  const auto [mantissa, power] = exp_parts(x < -104.6f ? -104.6f : x);
  return mantissa * std::bit_cast<float>(static_cast<std::uint32_t>(power + 24 + 127) << 23) * 0x1p-24f;
}

inline float exp(float x) {
  const bool zero = x < -103.972077f;  // the logarithm of 2^-150, which is half of the least number
  const float y = select(zero, 0.0f, x);
  // NaN passes both comparisons; above 89 the result is infinity anyway.
  const auto [mantissa, power] = exp_parts(y > 89.0f ? 89.0f : y);
  // Two factors: 2^power itself may not be a float although the product is.
  const std::int32_t half = power >> 1;
  const float scale0 = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float scale1 = std::bit_cast<float>(static_cast<std::uint32_t>(power - half + 127) << 23);
  return select(zero, 0.0f, mantissa * scale0 * scale1);
}

// The logarithm of x * 2^-shift, for a normal x that is positive and finite.
inline float log_of_normal(float x, float shift) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - 0x3f3504f3u;
  const auto exponent = static_cast<std::int32_t>(bits) >> 23;
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u);
  const float e = static_cast<float>(exponent) - shift;
  const float f = m - 1.0f;
  const float f2 = f * f;
  float p = 7.0376836292e-2f;
  p = mul_add(p, f, -1.1514610310e-1f);
  p = mul_add(p, f, 1.1676998740e-1f);
  p = mul_add(p, f, -1.2420140846e-1f);
  p = mul_add(p, f, 1.4249322787e-1f);
  p = mul_add(p, f, -1.6668057665e-1f);
  p = mul_add(p, f, 2.0000714765e-1f);
  p = mul_add(p, f, -2.4999993993e-1f);
  p = mul_add(p, f, 3.3333331174e-1f);
  float tail = p * f * f2;
  tail = mul_add(e, -2.12194440e-4f, tail);
  tail = mul_add(f2, -0.5f, tail);
  return mul_add(e, 0.693359375f, f + tail);
}

inline float log(float x) {
  const bool subnormal = x < std::numeric_limits<float>::min();
  float y = log_of_normal(select(subnormal, x * 0x1p23f, x), select(subnormal, 23.0f, 0.0f));
  // Infinity and NaN stay what they are; zero and the negative numbers have no logarithm.
  y = select(x < std::numeric_limits<float>::infinity(), y, x);
  y = select(x < 0.0f, std::numeric_limits<float>::quiet_NaN(), y);
  return select(x == 0.0f, -std::numeric_limits<float>::infinity(), y);
}

// For x in [0, 1], or NaN: what softplus needs.
inline float log1p(float x) {
  const float y = 1.0f + x;
  return log_of_normal(y, 0.0f) + (x - (y - 1.0f)) / y;  // the second part of NaN is NaN
}

inline float tanh(float x) {
  const float magnitude = std::fabs(x);
  const float x2 = x * x;
  float p = -5.70498872745e-3f;
  p = mul_add(p, x2, 2.06390887954e-2f);
  p = mul_add(p, x2, -5.37397155531e-2f);
  p = mul_add(p, x2, 1.33314422036e-1f);
  p = mul_add(p, x2, -3.33332819422e-1f);
  const float near = mul_add(p * x2, magnitude, magnitude);
  // From 20 on it is 1, long since, and the power below is that of a float; NaN passes.
  const float bounded = select(magnitude > 20.0f, 20.0f, magnitude);
  const auto [mantissa, power] = exp_parts(bounded + bounded);
  const float square = mantissa * std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
  const float far = 1.0f - 2.0f / (square + 1.0f);
  return std::copysign(select(magnitude < 0.625f, near, far), x);  // -0 keeps its sign too
}

inline void sin_cos_turns(float turns, float* sine, float* cosine) {
  // The nearest quarter, and the angle from there: at most an eighth of a turn.
  const float rounded = mul_add(turns, 4.0f, 12582912.0f);  // as in exp
  const std::uint32_t quarter = std::bit_cast<std::uint32_t>(rounded);
  const float r = mul_add(rounded - 12582912.0f, -0.25f, turns) * 6.28318530718f;
  const float r2 = r * r;
  float s = -1.9515295891e-4f;
  s = mul_add(s, r2, 8.3321608736e-3f);
  s = mul_add(s, r2, -1.6666654611e-1f);
  s = mul_add(s * r2, r, r);
  float c = 2.443315711809948e-5f;
  c = mul_add(c, r2, -1.388731625493765e-3f);
  c = mul_add(c, r2, 4.166664568298827e-2f);
  c = mul_add(c * r2, r2, mul_add(r2, -0.5f, 1.0f));
  const bool odd = quarter & 1u;
  const float sign_of_sine = std::bit_cast<float>(((quarter & 2u) << 30) | 0x3f800000u);
  const float sign_of_cosine = std::bit_cast<float>((((quarter + 1u) & 2u) << 30) | 0x3f800000u);
  *sine = sign_of_sine * select(odd, c, s);
  *cosine = sign_of_cosine * select(odd, s, c);
}

// exp(-a^2 / 2) for a in [0, kEndOfBell]. At the end it is 0 as a float, and the exponent is still one that needs no
// bound as in exp_of_negative.
inline constexpr float kEndOfBell = 14.46f;
inline float bell(float a) {
  const float square = a * a;
  const float lost = mul_add(a, a, -square);  // what rounding took from the square; exp would magnify it
  const auto [mantissa, power] = exp_parts(-0.5f * square);
  const float shifted = std::bit_cast<float>(static_cast<std::uint32_t>(power + 24 + 127) << 23);
  return mantissa * shifted * 0x1p-24f * mul_add(lost, -0.5f, 1.0f);
}

// The bell at x. It is 0 beyond its end, and that of NaN is too. As integers, because that is one instruction: floats
// that are not negative have the order of their bits.
inline float bell_of_number(float x) {
  constexpr auto kEnd = std::bit_cast<std::uint32_t>(kEndOfBell);
  return bell(std::bit_cast<float>(std::min(std::bit_cast<std::uint32_t>(std::fabs(x)), kEnd)));
}

// The bell at x times a polynomial in 1 / (1 + 0.24 |x|), a Chebyshev fit whose relative error is 4e-9: unlike
// 1 + erf it keeps its digits for negative x. NaN passes, in t.
inline float normal_cdf(float x, float bell_at_x) {
  const float t = 1.0f / mul_add(std::fabs(x), 0.24f, 1.0f);
  const float u = t - 0.625f;  // the middle of the range: the terms of the polynomial do not cancel there
  float p = 2.5693751722e-02f;
  p = mul_add(p, u, 1.8923298062e-02f);
  p = mul_add(p, u, -5.8807967239e-02f);
  p = mul_add(p, u, -8.5024615215e-02f);
  p = mul_add(p, u, 7.2762314667e-02f);
  p = mul_add(p, u, 3.5612202473e-01f);
  p = mul_add(p, u, 5.6579610398e-01f);
  p = mul_add(p, u, 5.7234713757e-01f);
  p = mul_add(p, u, 4.1666991070e-01f);
  p = mul_add(p, u, 2.2613012938e-01f);
  const float below = bell_at_x * (p * t);
  return std::fabs(select(x > 0.0f, 1.0f, 0.0f) - below);
}
inline float normal_cdf(float x) { return normal_cdf(x, bell_of_number(x)); }

inline float gelu_slope(float x) {
  const float shared = bell_of_number(x);
  return normal_cdf(x, shared) + x * (0.398942280f * shared);
}

#endif

// Integers are what they are.
template <class T>
LOCKSTEP_HD inline T floor(T x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return std::floor(x);
}
template <class T>
LOCKSTEP_HD inline T ceil(T x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return std::ceil(x);
}
template <class T>
LOCKSTEP_HD inline T round(T x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return std::rint(x);
}
template <class T>
LOCKSTEP_HD inline T trunc(T x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return std::trunc(x);
}

template <class T>
LOCKSTEP_HD inline T sigmoid(T x) {
  // exp of a negative number never overflows, and small results keep their digits.
  const T e = exp_of_negative(-std::fabs(x));
  return select(x < T(0), e, T(1)) / (T(1) + e);
}
template <class T>
LOCKSTEP_HD inline T softplus(T x) {
  return select(x > T(0), x, T(0)) + log1p(exp_of_negative(-std::fabs(x)));
}

}  // namespace lockstep::math
