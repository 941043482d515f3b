// The oneDNN that products and convolutions on the host go to.
#pragma once

#include "lockstep/runtime/cuda/cuda_versions.h"

namespace lockstep::kernels::host {

lockstep::detail::Version onednn_version();

}  // namespace lockstep::kernels::host
