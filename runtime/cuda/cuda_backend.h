// What kernels need of the CUDA devices' streams. Private to the library.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/runtime/stream/stream.h"

namespace lockstep::cuda {

// The CUDA stream behind a stream of a CUDA device.
cudaStream_t native(const Stream& stream);
}  // namespace lockstep::cuda
