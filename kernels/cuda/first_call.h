// The lock of what the calls of a library share.
#pragma once

#include <mutex>
#include <optional>

#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::kernels::cuda {

// Holds the mutex. A library loads code for a call when it is first described, and when it first runs: not beside a
// collective. So who comes before `has_run()`, which is asked under the mutex, is let in alone.
class FirstCallLock {
 public:
  template <class F>
  FirstCallLock(std::mutex& mutex, F&& has_run) : lock_(mutex) {
    if (has_run()) [[likely]]
      return;
    lock_.unlock();
    alone_.emplace();
    lock_.lock();
  }

 private:
  std::optional<lockstep::detail::GrowthLock> alone_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace lockstep::kernels::cuda
