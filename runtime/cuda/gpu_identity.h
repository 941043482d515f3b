// Which GPU of the machine a CUDA device is.
#pragma once

#include <string>

#include "lockstep/runtime/device.h"

namespace lockstep::detail {

// The same in every process of the machine, whichever GPUs it sees and in whatever order. NotSupported for other
// devices than CUDA's.
LOCKSTEP_API std::string gpu_identity(Device device);

}  // namespace lockstep::detail
