// Which versions of other libraries this one was compiled with, and which it finds. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

struct Version {
  std::string built_with;  // empty: without
  std::string found;       // empty: not there
};

// Neither starts anything on a device.
Version cuda_runtime_version();
Version cuda_driver_version();

}  // namespace lockstep::detail
