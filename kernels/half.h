// 16-bit floating-point storage types. Arithmetic happens in float; conversions round to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

namespace detail {
// The conversions are written without branches (all cases are computed, masks choose), so that loops of them become
// vector code.
constexpr std::uint32_t choose(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = -static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}
constexpr std::uint16_t float_to_half_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Subnormal: adding 0.5 lets the float unit do the rounding.
  const float shifted = std::bit_cast<float>(choose(magnitude < 0x38800000u, magnitude, 0)) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t infinity_or_nan = choose(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  const std::uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
  return static_cast<std::uint16_t>(sign | choose(magnitude >= 0x477ff000u, infinity_or_nan, finite));  // beyond 65504
}
constexpr float half_bits_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  // Shifted into place the number is too small by 2^112, subnormal or not.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = choose(magnitude >= 0x0f800000u, 0x7f800000u, 0);
  return std::bit_cast<float>(sign | special | std::bit_cast<std::uint32_t>(scaled));
}
constexpr std::uint16_t float_to_bfloat_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nan = (bits >> 16) | 0x40u;  // keep NaN a NaN
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(choose((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded));
}
}  // namespace detail

struct Half {
  std::uint16_t bits = 0;
  constexpr Half() = default;
  constexpr Half(float value) : bits(detail::float_to_half_bits(value)) {}       // NOLINT: converts like a number
  constexpr operator float() const { return detail::half_bits_to_float(bits); }  // NOLINT
};

struct BFloat16 {
  std::uint16_t bits = 0;
  constexpr BFloat16() = default;
  constexpr BFloat16(float value) : bits(detail::float_to_bfloat_bits(value)) {}  // NOLINT
  constexpr operator float() const {                                              // NOLINT
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

}  // namespace lockstep
