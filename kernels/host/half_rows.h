// Rows of numbers in another storage type. f16 goes by the processor's own conversions where it has them: the scalar
// code of kernels/half.h costs six times as much.
#pragma once

#include <cstdint>

#include "lockstep/kernels/half.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::host {

template <class From, class To>
void convert_row(const From* from, To* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

#if defined(__F16C__) && defined(__AVX__)
inline void convert_row(const Half* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = from[i];
}

inline void convert_row(const float* from, Half* to, std::int64_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0f), nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 x = _mm256_loadu_ps(from + i);
    // A NaN gives the one that Half gives, whatever bits it has.
    const __m256 quiet = _mm256_or_ps(_mm256_and_ps(x, sign), nan);
    const __m256 clean = _mm256_blendv_ps(x, quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = from[i];
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)  // whose masks compilers make good use of
// Half as many instructions as compilers make of the scalar code.
inline void convert_row(const float* from, BFloat16* to, std::int64_t count) {
  const auto rounded = [](const float* at) {
    const __m256 x = _mm256_loadu_ps(at);
    const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), nan, is_nan);
  };
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i packed = _mm256_packus_epi32(rounded(from + i), rounded(from + i + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  for (; i < count; ++i) to[i] = from[i];
}
#endif

}  // namespace lockstep::kernels::host
