// How the ranks over NCCL wait for something that nobody announces. Private to the library.
#pragma once

#include <chrono>
#include <thread>

#include "lockstep/runtime/deadline.h"

namespace lockstep::nccl {

// How often the store is asked for failures.
inline constexpr Milliseconds kStoreInterval{100};

// How long a thread asks again and again before it sleeps between two questions. NCCL takes tens of microseconds to
// enqueue a collective, about as long as the shortest sleep, and meanwhile the thread enqueues no kernels.
inline constexpr std::chrono::microseconds kSpinTime{200};

// Between two questions: often at first.
class Patience {
 public:
  explicit Patience(std::chrono::microseconds spin) : spins_until_(Clock::now() + spin) {}
  void pass() {
    if (Clock::now() < spins_until_) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(++slept_ < 200 ? 50 : 1000));
  }

 private:
  const Clock::time_point spins_until_;
  int slept_ = 0;
};

}  // namespace lockstep::nccl
