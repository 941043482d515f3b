// How host threads wait for each other: as std::condition_variable has it, but where turns are taken (record/turns.h).
// Private to the library.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/runtime/record/recorder.h"

namespace lockstep::detail {

// `ready` is asked with the lock held, and not again once it was true. False at the deadline.
template <class Ready>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  Recorder* const recorder = Recorder::active();
  if (!recorder) [[likely]]
    return changed.wait_until(lock, deadline.time(), ready);
  std::mutex& mutex = *lock.mutex();
  lock.unlock();
  const bool in_time = recorder->wait_until(
      [&] {
        const std::lock_guard held(mutex);
        return ready();
      },
      deadline);
  lock.lock();
  return in_time;
}

}  // namespace lockstep::detail
