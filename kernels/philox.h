// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) and how its words become random
// elements. Counter-based: an element depends on key, stream and its own position, on nothing that was drawn before.
//
// A block is the four words of one counter {low, high, stream low, stream high}. Element i of a tensor uses
//   one word   of the block with counter i / 4: word i % 4
//              (uniform and normal of f32, f16 and bf16; bernoulli of every dtype)
//   two words  of the block with counter i / 2: word 2 * (i % 2) and the one behind it
//              (uniform and normal of f64; integer of every dtype)
// Two words make one number: the first is the low half.
//
//   uniform    the top 24 (f32), 53 (f64), 11 (f16), 8 (bf16) bits as a fraction u; a + (b - a) * u, never b itself
//   normal     Box-Muller over neighbours: elements 2 j and 2 j + 1 share two uniforms, u in (0, 1] of element 2 j
//              and v of element 2 j + 1. With r = sqrt(-2 ln u), element 2 j is a + b r cos(2 pi v), and the other
//              a + b r sin(2 pi v)
//   bernoulli  word < a * 2^32
//   integer    a + the high half of the 128-bit product of the 64-bit number and the count b - a
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/kernels/half.h"
#include "lockstep/kernels/hd.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::philox {

struct Block {
  std::uint32_t words[4];
};

LOCKSTEP_HD inline Block block(Block counter, std::uint32_t key0, std::uint32_t key1) {
  std::uint32_t c0 = counter.words[0], c1 = counter.words[1], c2 = counter.words[2], c3 = counter.words[3];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ key0;
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

LOCKSTEP_HD inline Block block(std::uint64_t counter, std::uint64_t stream, std::uint64_t key) {
  return block({{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
               static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
}

LOCKSTEP_HD inline std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// High half of the 128-bit product.
LOCKSTEP_HD inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const std::uint64_t middle = (a0 * b0 >> 32) + (a1 * b0 & 0xffffffffu) + a0 * b1;
  return a1 * b1 + (a1 * b0 >> 32) + (middle >> 32);
}

// The fraction of a word in [0, 1), in as many bits as the stored type has, so that storing does not round it to 1.
// (Through int: vector units convert signed integers.)
template <class T>
LOCKSTEP_HD inline float fraction(std::uint32_t word) = delete;
template <>
LOCKSTEP_HD inline float fraction<float>(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}
template <>
LOCKSTEP_HD inline float fraction<Half>(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 21)) * 0x1p-11f;
}
template <>
LOCKSTEP_HD inline float fraction<BFloat16>(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 24)) * 0x1p-8f;
}
LOCKSTEP_HD inline double fraction(std::uint64_t number) { return static_cast<double>(number >> 11) * 0x1p-53; }

// T is the stored type, C the one that computes (float or double).
template <class T, class C>
LOCKSTEP_HD inline T uniform(C fraction, C a, C b) {
  const C value = static_cast<C>(static_cast<T>(a + (b - a) * fraction));
  // Rounding can reach b when |a| or |b| is large: that one number in millions becomes a.
  return static_cast<T>(math::select(value < b, value, a));
}

// `u` in (0, 1], `v` in [0, 1).
template <class C>
LOCKSTEP_HD inline void normal(C u, C v, C mean, C deviation, C* first, C* second) {
  const C radius = deviation * std::sqrt(C(-2) * math::log(u));
  C sine, cosine;
  math::sin_cos_turns(v, &sine, &cosine);
  *first = mean + radius * cosine;
  *second = mean + radius * sine;
}
// Uniforms in (0, 1]: all 32 bits, for the tail of the normal distribution.
LOCKSTEP_HD inline float open_fraction(std::uint32_t word) { return (static_cast<float>(word) + 1.0f) * 0x1p-32f; }
LOCKSTEP_HD inline double open_fraction(std::uint64_t number) {
  return (static_cast<double>(number >> 11) + 1.0) * 0x1p-53;
}

// Bernoulli: an element is 1 when its word is below this.
LOCKSTEP_HD inline std::uint64_t threshold(double probability) {
  if (!(probability > 0)) return 0;
  return probability >= 1 ? std::uint64_t{1} << 32 : static_cast<std::uint64_t>(probability * 0x1p32);
}

}  // namespace lockstep::philox
