#include "lockstep/runtime/deadline.h"

#include "support/catch.h"

namespace lockstep {
namespace {

TEST_CASE("deadline: what is left is rounded up to milliseconds, and never negative") {
  const Deadline passed = Deadline::after(Milliseconds(-5'000));
  CHECK(passed.passed());
  CHECK(passed.left() == Milliseconds(0));

  const Deadline later = Deadline::after(Milliseconds(3'600'000));
  for (int i = 0; i < 100; ++i) {
    const Clock::time_point before = Clock::now();
    const Milliseconds left = later.left();
    const Clock::time_point after = Clock::now();
    // Whoever waits for so long has waited until the deadline, and less than a millisecond longer.
    REQUIRE(after + left >= later.time());
    REQUIRE(before + left < later.time() + Milliseconds(1));
  }
}

TEST_CASE("deadline: one that is too late for the clock never comes") {
  const Deadline never = Deadline::after(Milliseconds::max());
  CHECK(never.never());
  CHECK_FALSE(never.passed());
  CHECK(never.left() > std::chrono::hours(24 * 365));
  CHECK_FALSE(Deadline::after(kDefaultTimeout).never());
}

}  // namespace
}  // namespace lockstep
