// Holding a stream up, and waiting for it, through the CUDA API alone.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/catch.h"

namespace contract {

// The error with which the stream's work ends.
inline cudaError_t finish(cudaStream_t stream) {
  cudaError_t result;
  while ((result = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    (void)cudaGetLastError();
    std::this_thread::yield();
  }
  return result;
}

// Holds a stream up until it is opened, or destroyed.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    REQUIRE(cudaLaunchHostFunc(
                stream,
                [](void* memory) {
                  auto* const open = static_cast<std::atomic<bool>*>(memory);
                  while (!open->load()) std::this_thread::sleep_for(std::chrono::microseconds(20));
                },
                open_) == cudaSuccess);
  }
  Gate(const Gate&) = delete;
  ~Gate() { open(); }
  void open() { open_->store(true); }

 private:
  std::atomic<bool>* const open_ = new std::atomic<bool>(false);  // the stream may look later than the test lives
};

}  // namespace contract
