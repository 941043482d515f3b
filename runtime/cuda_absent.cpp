// A build without CUDA.
#include "lockstep/runtime/internal/cuda_backend.h"

namespace lockstep::detail {

Backend* make_cuda_backend() { return nullptr; }
bool cuda_device_lost(Device) noexcept { return false; }

}  // namespace lockstep::detail
