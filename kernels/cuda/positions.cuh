// A loop over positions by the threads of the whole grid.
#pragma once

#include "lockstep/kernels/cuda/launch_support.h"

namespace lockstep::kernels::cuda {

// Calls f(i) for 0 <= i < count, each once, in blocks of kThreads.
template <class F>
__device__ void for_each_position(std::int64_t count, F&& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) f(i);
}

}  // namespace lockstep::kernels::cuda
