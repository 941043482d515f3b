// The one way to launch a kernel. A kernel reaches the GPU through launch() and nothing else: it makes the device
// current, checks the limits of a grid and throws what the launch returns.
#pragma once

#include <tuple>
#include <utility>

#include "lockstep/kernels/cuda/launch_support.h"

namespace lockstep::kernels::cuda {

namespace detail {
void launch(const Stream& stream, const char* op, const void* kernel, const Grid& grid, void** parameters);
}

// Enqueues `kernel` on `stream`. Throws DeviceError, naming `op`, when the launch fails.
template <class... Parameters, class... Args>
void launch(const Stream& stream, const char* op, void (*kernel)(Parameters...), const Grid& grid,
            const Args&... args) {
  static_assert(sizeof...(Parameters) == sizeof...(Args));
  // Of the kernel's types: the launch copies as many bytes as the kernel declares.
  std::tuple<std::remove_const_t<Parameters>...> values(static_cast<std::remove_const_t<Parameters>>(args)...);
  std::apply(
      [&](auto&... value) {
        void* parameters[] = {&value...};
        detail::launch(stream, op, reinterpret_cast<const void*>(kernel), grid, parameters);
      },
      values);
}

// The dynamic shared memory of a block.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}

}  // namespace lockstep::kernels::cuda
