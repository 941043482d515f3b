// The CUDA devices. Private to the library; see runtime/backend.h for the contract and docs/backend-contract.md.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::cuda {

// Null when there is no driver or no GPU.
Backend* make_cuda_backend();

// The CUDA stream behind a stream of a CUDA device.
cudaStream_t native(const Stream& stream);

}  // namespace lockstep::cuda
