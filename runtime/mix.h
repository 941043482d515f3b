// The mixing of SplitMix64 (Steele et al., 2014): seeds and streams of random numbers are made with it.
#pragma once

#include <cstdint>

namespace lockstep::detail {

inline constexpr std::uint64_t kMixStep = 0x9e3779b97f4a7c15;

// Its finaliser: a bijection that changes half of the bits whatever bit of the input changes.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A well-mixed number of two.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(a + kMixStep * (b + 1)); }

}  // namespace lockstep::detail
