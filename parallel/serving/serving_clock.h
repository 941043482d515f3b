// The time that a pool of replicas goes by: batching windows, deadlines, latencies. A test's own clock stands still
// until the test moves it.
#pragma once

#include <chrono>
#include <functional>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

// Thread-safe.
class LOCKSTEP_API ServingClock {
 public:
  virtual ~ServingClock();
  virtual Clock::time_point now() const = 0;
  // Whether it goes on by itself: then a wait until a time ends at that time. Else a wait ends when advance() has
  // called what was registered.
  virtual bool runs() const = 0;
  // For the pool: `wake` is called after each step of a clock that does not run. Empty: no longer.
  virtual void set_wake(const void* owner, std::function<void()> wake) = 0;

  // Time as it passes.
  static ServingClock& real();
};

// Stands still but for advance().
class LOCKSTEP_API ManualClock final : public ServingClock {
 public:
  ManualClock();
  ~ManualClock() override;
  Clock::time_point now() const override;
  bool runs() const override { return false; }
  void set_wake(const void* owner, std::function<void()> wake) override;
  void advance(Clock::duration by);

 private:
  struct State;
  State* const state_;
};

}  // namespace lockstep
