// Holding a stream up, and waiting for it, through the CUDA API alone.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/catch.h"

namespace contract {

// A wrong assumption may keep work from ending: then its case fails, and the program goes on.
inline constexpr std::chrono::seconds kPatience{15};

// Asks until the answer is another than "not ready": that answer, or cudaErrorTimeout when none comes.
template <class Query>
cudaError_t answer(Query query) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  cudaError_t result;
  while ((result = query()) == cudaErrorNotReady) {
    (void)cudaGetLastError();
    if (std::chrono::steady_clock::now() > deadline) return cudaErrorTimeout;
    std::this_thread::yield();
  }
  return result;
}

// The error with which the stream's work ends.
inline cudaError_t finish(cudaStream_t stream) {
  return answer([stream] { return cudaStreamQuery(stream); });
}

// Holds a stream up until it is opened, or destroyed.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    REQUIRE(cudaLaunchHostFunc(
                stream,
                [](void* memory) {
                  auto* const state = static_cast<State*>(memory);
                  state->reached = true;
                  while (!state->open) std::this_thread::sleep_for(std::chrono::microseconds(20));
                },
                state_) == cudaSuccess);
  }
  Gate(const Gate&) = delete;
  ~Gate() { open(); }
  void open() { state_->open = true; }
  // True when the stream has come to it: soon, unless something else keeps its host function from running.
  bool reached(std::chrono::milliseconds patience = kPatience) const {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!state_->reached && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return state_->reached;
  }

 private:
  struct State {
    std::atomic<bool> open{false}, reached{false};
  };
  State* const state_ = new State;  // the stream may look later than the test lives
};

}  // namespace contract
