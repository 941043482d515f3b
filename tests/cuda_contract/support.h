// The rules of the CUDA runtime that Lockstep relies on, asked through the CUDA API alone: the same sources run on the
// fake, which then has to break the same uses, and on a real runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "cuda_contract/gate.h"
#include "cuda_contract/kernels.h"
#include "support/catch.h"

#ifdef LOCKSTEP_FAKE_CUDA
#include "fake_cuda/fake_cuda.h"
#endif

namespace contract {

inline int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

// True when there are that many GPUs; says that the rule stays unverified otherwise.
inline bool have_devices(int wanted, const char* rule) {
  const int count = device_count();
  if (count >= wanted) return true;
  WARN("unverified: " << rule << " (" << wanted << " GPUs expected, " << count << " found)");
  return false;
}

// On the fake, the use before this was written down as exactly this failure. Nothing on a real runtime.
inline void refused([[maybe_unused]] const char* rule) {
#ifdef LOCKSTEP_FAKE_CUDA
  std::vector<std::string> broken;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) broken.emplace_back(name_of(failure.rule));
  CHECK(broken == std::vector<std::string>{rule});
#endif
}

struct Stream {
  cudaStream_t handle = nullptr;
  int device;
  explicit Stream(int on = 0) : device(on) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess);
  }
  Stream(const Stream&) = delete;
  ~Stream() {
    (void)cudaSetDevice(device);
    (void)cudaStreamDestroy(handle);
  }
};

struct Event {
  cudaEvent_t handle = nullptr;
  explicit Event(int device = 0, unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  Event(const Event&) = delete;
  ~Event() { (void)cudaEventDestroy(handle); }
};

struct Memory {
  int* data = nullptr;
  int device;
  explicit Memory(int on = 0, std::size_t bytes = 4096) : device(on) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, bytes) == cudaSuccess);
    data = static_cast<int*>(memory);
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    (void)cudaSetDevice(device);
    (void)cudaFree(data);
  }
};

struct Pinned {
  int* data = nullptr;
  explicit Pinned(std::size_t bytes = 4096) {
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    void* memory = nullptr;
    REQUIRE(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess);
    data = static_cast<int*>(memory);
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() { (void)cudaFreeHost(data); }
};

}  // namespace contract
