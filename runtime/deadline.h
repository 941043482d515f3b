// When a wait ends at the latest. Every wait in Lockstep has one.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

class Deadline {
 public:
  static Deadline after(Milliseconds timeout) {
    // A timeout too long to add to now means "as late as the clock can say".
    const auto now = Clock::now();
    return Deadline(timeout >= std::chrono::duration_cast<Milliseconds>(Clock::time_point::max() - now)
                        ? Clock::time_point::max()
                        : now + timeout);
  }
  bool passed() const { return Clock::now() >= time_; }
  // Whether it is as late as the clock can say. Waits that add to it would overflow.
  bool never() const { return time_ == Clock::time_point::max(); }
  // Until then, rounded up to whole milliseconds; 0 when it has passed.
  Milliseconds left() const { return std::max(std::chrono::ceil<Milliseconds>(time_ - Clock::now()), Milliseconds(0)); }
  Clock::time_point time() const { return time_; }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

// What a wait uses when the caller names no time: long enough for any step, short enough that a hang is noticed.
inline constexpr Milliseconds kDefaultTimeout{600'000};

}  // namespace lockstep
