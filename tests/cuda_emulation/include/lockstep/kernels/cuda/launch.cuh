// In place of kernels/cuda/launch.cuh where the kernels are compiled as C++: a launch runs every thread of every block
// in the calling thread, as fibers that take turns at the barriers.
#pragma once

#include <tuple>
#include <utility>

#include "lockstep/kernels/cuda/launch_support.h"

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace emulation {

using lockstep::kernels::cuda::Grid;

// Runs `thread(context)` for every thread of the grid. Throws when threads of a block wait at different barriers.
void run(const char* op, const Grid& grid, void (*thread)(void* context), void* context);
void* dynamic_shared();
void barrier(int where);
int barrier_or(int value, int where);
inline int system_atomics = 0;  // how many there have been
inline int barriers = 0;        // counted for every thread
// Throws InvalidArgument when a kernel has reported an index.
void check_report(const char* op);

}  // namespace emulation

// As CUDA has them; the scheduler sets them.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define __syncthreads() ::emulation::barrier(__LINE__)
#define __syncwarp() ::emulation::barrier(__LINE__)  // of the whole block: all its warps come by
#define __syncthreads_or(value) ::emulation::barrier_or(value, __LINE__)
inline void __threadfence_system() {}
inline int atomicAdd(int* to, int value) { return std::exchange(*to, *to + value); }
inline int atomicMin(int* to, int value) { return std::exchange(*to, std::min(*to, value)); }
inline int atomicCAS_system(int* to, int expected, int value) {
  ++emulation::system_atomics;
  const int before = *to;
  if (before == expected) *to = value;
  return before;
}

namespace lockstep::kernels::cuda {

template <class... Parameters, class... Args>
void launch(const Stream&, const char* op, void (*kernel)(Parameters...), const Grid& grid, const Args&... args) {
  static_assert(sizeof...(Parameters) == sizeof...(Args));
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_const_t<Parameters>...> values;
  } call{kernel, {static_cast<std::remove_const_t<Parameters>>(args)...}};
  emulation::run(
      op, grid,
      [](void* context) {
        auto& c = *static_cast<Call*>(context);
        std::apply(c.kernel, c.values);
      },
      &call);
  emulation::check_report(op);
}

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulation::dynamic_shared());
}

}  // namespace lockstep::kernels::cuda
