#include "lockstep/parallel/serving/serving_clock.h"

#include <map>
#include <mutex>
#include <utility>

namespace lockstep {
namespace {

class RealClock final : public ServingClock {
 public:
  Clock::time_point now() const override { return Clock::now(); }
  bool runs() const override { return true; }
  void set_wake(const void* /*owner*/, std::function<void()> /*wake*/) override {}
};

}  // namespace

ServingClock::~ServingClock() = default;

ServingClock& ServingClock::real() {
  static auto* const clock = new RealClock;  // a pool may outlive statics
  return *clock;
}

struct ManualClock::State {
  mutable std::mutex mutex;
  Clock::time_point now{};
  std::map<const void*, std::function<void()>> wakes;
};

ManualClock::ManualClock() : state_(new State) {}
ManualClock::~ManualClock() { delete state_; }

Clock::time_point ManualClock::now() const {
  const std::lock_guard lock(state_->mutex);
  return state_->now;
}

void ManualClock::set_wake(const void* owner, std::function<void()> wake) {
  const std::lock_guard lock(state_->mutex);
  if (wake)
    state_->wakes[owner] = std::move(wake);
  else
    state_->wakes.erase(owner);
}

void ManualClock::advance(Clock::duration by) {
  std::map<const void*, std::function<void()>> wakes;
  {
    const std::lock_guard lock(state_->mutex);
    state_->now += by;
    wakes = state_->wakes;
  }
  for (const auto& [owner, wake] : wakes) wake();
}

}  // namespace lockstep
