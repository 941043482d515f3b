// Random numbers for datasets and samplers outside of tensors.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/runtime/api.h"

namespace lockstep {

// A generator for std::shuffle and the like; the numbers are the same on every machine (the standard library's
// distributions are not). SplitMix64.
class LOCKSTEP_API RandomEngine {
 public:
  using result_type = std::uint64_t;

  // Different pairs give unrelated sequences.
  explicit RandomEngine(std::uint64_t seed, std::uint64_t stream = 0);
  // A generator that goes on from the thread's random numbers, as the next random operation on tensors would. Inside
  // Dataset::get these depend on the loader's seed, the epoch and the index only.
  static RandomEngine from_thread();

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()();
  // Uniform in [0, bound), without bias. `bound` is positive.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [0, 1), with 53 bits.
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep
