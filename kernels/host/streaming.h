// What is too large for the caches. Stores go around them: a plain store reads its cache line from memory first, and
// large results push out what is still wanted there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::host {

inline constexpr std::int64_t kCacheLine = 64;

inline bool is_at_line(const void* to) { return reinterpret_cast<std::uintptr_t>(to) % kCacheLine == 0; }

// Whether operands take so much together that they are not in the second-level cache, or are taken not to be.
inline bool is_far(std::int64_t bytes) { return bytes >= std::int64_t{4} << 20; }

// Whether a result is so large that what was written of it first has left the caches when the rest is.
inline bool outgrows_caches(std::int64_t bytes) { return bytes >= std::int64_t{32} << 20; }

// Copies whole cache lines to where one begins. Other threads may read them only after end_streaming() in this thread.
inline void stream_lines(const std::byte* from, std::byte* to, std::size_t bytes) {
#if defined(__AVX__)
  for (std::size_t i = 0; i < bytes; i += sizeof(__m256i))
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void end_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace lockstep::kernels::host
