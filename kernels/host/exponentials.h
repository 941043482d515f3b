// exp and log of many floats. Blocks of nothing but ordinary numbers do without what the others need; the bits are
// those of math::exp and math::log, for any division into blocks.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {

// y[i] = any(x[i]), which is ordinary(x[i]) where is_ordinary(x[i]). y may be x.
template <class IsOrdinary, class Ordinary, class Any>
void by_blocks(const float* x, float* y, std::int64_t count, IsOrdinary is_ordinary, Ordinary ordinary, Any any) {
  constexpr std::int64_t kBlock = 256;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    int others = 0;
    for (std::int64_t i = begin; i < end; ++i) others += !is_ordinary(x[i]);
    if (others > 0) {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = begin; i < end; ++i) y[i] = any(x[i]);
    } else {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = begin; i < end; ++i) y[i] = ordinary(x[i]);
    }
  }
}

inline void exponentials(const float* x, float* y, std::int64_t count) {
  by_blocks(
      x, y, count, [](float v) { return std::fabs(v) <= 87.0f; },  // the result is normal, and so is the power of two
      [](float v) {
        const auto [mantissa, power] = math::exp_parts(v);
        return mantissa * std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
      },
      [](float v) { return math::exp(v); });
}

inline void logarithms(const float* x, float* y, std::int64_t count) {
  by_blocks(
      x, y, count,
      // Normal, positive and finite: as integers, because that is one comparison.
      [](float v) { return std::bit_cast<std::uint32_t>(v) - 0x00800000u < 0x7f000000u; },
      [](float v) { return math::log_of_normal(v, 0.0f); }, [](float v) { return math::log(v); });
}

}  // namespace lockstep::kernels::host
