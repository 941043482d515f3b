// Sanitizers, the order checker, streams that are threads and the fake CUDA runtime show who touches what, and when,
// which does not depend on dtypes and sizes, and mostly take their time for it: where a test goes through many of them,
// it does fewer there, and all of them in mode inline.
#pragma once

#include <cstdlib>
#include <string_view>

#include "support/devices.h"

namespace support {

inline bool watched() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return true;
#else
  const char* mode = std::getenv("LOCKSTEP_HOST_MODE");
  return device_type() == lockstep::DeviceType::cuda || (mode && std::string_view(mode) != "inline");
#endif
}

}  // namespace support
