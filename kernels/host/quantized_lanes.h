// Sixteen floats and sixteen integers, in as many registers as they take: sums that are kept in lanes have the same
// bits with AVX2 and AVX-512. In an unnamed namespace of what includes it: compiled for two instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::host {
namespace {

constexpr int kSixteen = 16;
#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif
constexpr int kParts = kSixteen / kLanes;
typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * 4)));

template <class To>
To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Lanes floats(const Ints& x) { return __builtin_convertvector(x, Lanes); }

// kLanes numbers of 8 bits.
inline Lanes floats(const std::int8_t* from) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return floats(reinterpret_cast<Ints>(_mm512_maskz_cvtepi8_epi32(0xffff, read<__m128i>(from))));
#elif defined(__AVX2__)
  return floats(reinterpret_cast<Ints>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))));
#else
  Ints x;
  for (int i = 0; i < kLanes; ++i) x[i] = from[i];
  return floats(x);
#endif
}

// The four bits at `place` of each word, as a number from -8 to 7.
template <int kPlace>
Lanes nibbles(const Ints& words) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const __m512i at = _mm512_maskz_srli_epi32(0xffff, reinterpret_cast<__m512i>(words), 4 * kPlace);
  return _mm512_maskz_permutexvar_ps(0xffff, at, numbers);  // looks at the lowest four bits alone
#else
  // Left as unsigned numbers: to shift a negative one is not defined.
  typedef std::uint32_t Words __attribute__((vector_size(kLanes * 4)));
  return floats(reinterpret_cast<Ints>(reinterpret_cast<Words>(words) << (28 - 4 * kPlace)) >> 28);
#endif
}

// Of four numbers, one for each four lanes, those of part `part`.
inline Lanes four_each(const float* four, std::ptrdiff_t part) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  static_cast<void>(part);
  const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_maskz_permutexvar_ps(0xffff, which, _mm512_castps128_ps512(_mm_loadu_ps(four)));
#elif defined(__AVX2__)
  const float low = four[2 * part], high = four[2 * part + 1];
  return _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low));
#else
  return Lanes{} + four[part];
#endif
}

// In one order, however many registers they come from.
inline float sum_of(const Lanes* parts) {
  float x[std::size_t{kSixteen}], four[4];
  std::memcpy(x, parts, sizeof x);
  for (int i = 0; i < 4; ++i) four[i] = ((x[i] + x[4 + i]) + x[8 + i]) + x[12 + i];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// ---- sums of four products of an unsigned number of 8 bits and a signed one, in each lane

template <bool kVnni>
Ints add_products(const Ints& sums, const Ints& us, const Ints& signeds) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  if constexpr (kVnni) {
    // Not by its intrinsic, which a compiler refuses to those who compile for x86-64-v4: not all of these have it.
    Ints to = sums;
    asm("vpdpbusd %2, %1, %0" : "+v"(to) : "v"(us), "v"(signeds));
    return to;
  }
  const __m512i pairs = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(us), reinterpret_cast<__m512i>(signeds));
  return sums + reinterpret_cast<Ints>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(us), reinterpret_cast<__m256i>(signeds));
  return sums + reinterpret_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  Ints to = sums;
  std::uint8_t u[sizeof(Ints)];
  std::int8_t s[sizeof(Ints)];
  std::memcpy(u, &us, sizeof u), std::memcpy(s, &signeds, sizeof s);
  for (int i = 0; i < 4 * kLanes; ++i) to[i / 4] += u[i] * s[i];
  return to;
#endif
}

// The lanes of `sums` together grow by the products of 4 kLanes signed numbers.
template <bool kVnni>
Ints add_signed_products(const Ints& sums, const std::int8_t* a, const std::int8_t* b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const auto wide = [](const std::int8_t* from) { return _mm512_maskz_cvtepi8_epi16(~0U, read<__m256i>(from)); };
  Ints to = sums;
  for (std::ptrdiff_t i = 0; i < 2; ++i)
    to += reinterpret_cast<Ints>(_mm512_madd_epi16(wide(a + 32 * i), wide(b + 32 * i)));
  return to;
#elif defined(__AVX2__)
  const auto wide = [](const std::int8_t* from) { return _mm256_cvtepi8_epi16(read<__m128i>(from)); };
  Ints to = sums;
  for (std::ptrdiff_t i = 0; i < 2; ++i)
    to += reinterpret_cast<Ints>(_mm256_madd_epi16(wide(a + 16 * i), wide(b + 16 * i)));
  return to;
#else
  Ints to = sums;
  for (int i = 0; i < 4 * kLanes; ++i) to[i / 4] += a[i] * b[i];
  return to;
#endif
}

inline bool has_vnni() {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  static const bool there = __builtin_cpu_supports("avx512vnni") != 0;
  return there;
#else
  return false;
#endif
}

}  // namespace
}  // namespace lockstep::kernels::host
