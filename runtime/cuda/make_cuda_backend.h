// The CUDA devices, if this build has any. Private to the library.
#pragma once

#include "lockstep/runtime/backend.h"

namespace lockstep::detail {

// Null without a driver or a GPU, and in a build without CUDA.
Backend* make_cuda_backend();

// Whether an error has ruined a CUDA device for the process: nothing runs on it any more, and every call throws.
bool cuda_device_lost(Device device) noexcept;

}  // namespace lockstep::detail
