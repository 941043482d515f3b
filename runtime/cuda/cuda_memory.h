// Where the raw memory of a device comes from: cudaMalloc, or a memory pool of CUDA's (LOCKSTEP_CUDA_MEMORY=pool).
// Private to the library.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

// The GPU of `device` is current and the growth lock held in every call.
class CudaMemory {
 public:
  // Makes the pool, if there is to be one. Each logical device has its own, also beside others on one GPU; the GPU's
  // default pool stays the program's. All GPUs in use that reach this one get access to it: peer access, which NCCL and
  // copies turn on, says nothing about pools. Throws NotSupported where the GPU has no pools, else changes nothing
  // when it throws.
  void start(Device device);
  // True once there is a pool, and with it a stream.
  bool pooled() const { return pool_; }

  // Null when there is none left. Work on every stream may use it at once.
  void* allocate(Device device, std::size_t bytes);
  // Nothing in flight uses it. What the pool has left goes back to the GPU.
  void free(void* memory) noexcept;

 private:
  cudaMemPool_t pool_ = nullptr;  // null: cudaMalloc
  cudaStream_t stream_ = nullptr;
};

}  // namespace lockstep::cuda
