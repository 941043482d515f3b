#include "lockstep/tensor/data/random_engine.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/mix.h"
#include "lockstep/tensor/ops/random.h"

namespace lockstep {
RandomEngine::RandomEngine(std::uint64_t seed, std::uint64_t stream)
    : state_(detail::mix(detail::mix(seed + detail::kMixStep) ^ (stream * 0xd1342543de82ef95 + detail::kMixStep))) {}

RandomEngine RandomEngine::from_thread() {
  const detail::RandomState state = detail::next_random();
  return RandomEngine(state.key, state.stream);
}

std::uint64_t RandomEngine::operator()() { return detail::mix(state_ += detail::kMixStep); }

std::uint64_t RandomEngine::below(std::uint64_t bound) {
  LOCKSTEP_CHECK(bound > 0, "[RandomEngine] expected a positive bound, got 0");
  // The numbers below 2^64 mod bound would make the small remainders likelier.
  const std::uint64_t surplus = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t number = (*this)();
    if (number >= surplus) return number % bound;
  }
}

}  // namespace lockstep
