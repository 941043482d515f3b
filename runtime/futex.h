// Sleeping until a word changes. Private to the library.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

// Returns when woken, when the word is not `expected`, at the deadline (null: none), or for no reason.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, const Deadline* deadline) {
  timespec time{};
  if (deadline) {
    using std::chrono::nanoseconds;
    const auto since_start = std::chrono::duration_cast<nanoseconds>(deadline->time().time_since_epoch()).count();
    time.tv_sec = since_start / 1'000'000'000;
    time.tv_nsec = since_start % 1'000'000'000;
  }
  // The bitset form takes an absolute time, on the clock of steady_clock.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, expected,
          deadline ? &time : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Spins while `waiting()` and not longer than `longest`. Every round gives the core away: there may be more spinning
// threads than cores.
template <class Waiting>
void spin_while(Waiting waiting, Clock::duration longest) {
  const Clock::time_point end = Clock::now() + longest;
  while (waiting()) {
    for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      if (!waiting()) return;
    }
    sched_yield();
    if (Clock::now() >= end) return;
  }
}

}  // namespace lockstep::detail
