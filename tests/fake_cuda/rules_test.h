// What the tests of the fake's rules share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_contract/gate.h"
#include "cuda_contract/kernels.h"
#include "fake_cuda/fake_cuda.h"
#include "support/catch.h"

namespace fake_test {

using contract::finish;
using contract::Gate;
using fake_cuda::Failure;
using fake_cuda::Rule;

// A machine of its own for a test; nothing may have failed by its end that the test did not take.
struct Machine {
  explicit Machine(const fake_cuda::Options& options = {}) { fake_cuda::reset(options); }
};

// The rules that were broken since the last call, by name.
inline std::vector<std::string> broken() {
  std::vector<std::string> names;
  for (const Failure& failure : fake_cuda::take_failures()) names.emplace_back(name_of(failure.rule));
  return names;
}
inline std::vector<std::string> only(Rule rule) { return {std::string(name_of(rule))}; }
inline std::vector<std::string> none() { return {}; }
// After an error that the test wanted.
inline cudaError_t forget_error() { return cudaGetLastError(); }

struct OnDevice {
  explicit OnDevice(int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); }
};

inline cudaStream_t make_stream(int device) {
  OnDevice current(device);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  return stream;
}
inline cudaEvent_t make_event(int device, bool timing = false) {
  OnDevice current(device);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming) == cudaSuccess);
  return event;
}
inline int* make_memory(int device, std::size_t bytes = 1024) {
  OnDevice current(device);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, bytes) == cudaSuccess);
  return static_cast<int*>(memory);
}
inline int* make_pinned(std::size_t bytes = 1024) {
  void* memory = nullptr;
  REQUIRE(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == cudaSuccess);
  return static_cast<int*>(memory);
}

}  // namespace fake_test
