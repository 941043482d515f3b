// Which device the calling thread works for, in traces. Private to the library.
#pragma once

#include "lockstep/runtime/device.h"

namespace lockstep::detail {

// Set by device threads; cpu in every other thread.
inline constinit thread_local Device thread_device;

}  // namespace lockstep::detail
