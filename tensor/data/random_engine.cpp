#include "lockstep/tensor/data/random_engine.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/random.h"

namespace lockstep {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

}  // namespace

RandomEngine::RandomEngine(std::uint64_t seed, std::uint64_t stream)
    : state_(mix(mix(seed + kStep) ^ (stream * 0xd1342543de82ef95 + kStep))) {}

RandomEngine RandomEngine::from_thread() {
  const detail::RandomState state = detail::next_random();
  return RandomEngine(state.key, state.stream);
}

std::uint64_t RandomEngine::operator()() { return mix(state_ += kStep); }

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
