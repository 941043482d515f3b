// The CUDA devices, if this build has any. Private to the library.
#pragma once

#include "lockstep/runtime/backend.h"

namespace lockstep::detail {

// Null without a driver or a GPU, and in a build without CUDA.
Backend* make_cuda_backend();

}  // namespace lockstep::detail
