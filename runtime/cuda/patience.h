// Asking CUDA until it is done, without a call that blocks. Private to the library.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/runtime/cuda/cuda_check.h"

namespace lockstep::cuda {

// What a query has answered; false while there is work left. Throws what check throws.
inline bool ready(cudaError_t result, Device device, const char* call) {
  if (result == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error
    return false;
  }
  check(result, device, call);
  return true;
}

// Waits in turns: at first a wait is over in microseconds, and a sleep would be the longest part of it.
class Patience {
 public:
  void pass() {
    if (++turns_ < 256) return;
    if (turns_ < 512) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(turns_ - 500, 100)));
  }

 private:
  int turns_ = 0;
};

}  // namespace lockstep::cuda
