// For messages about CUDA devices that do not exist. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

// Why there are none. Asks the driver.
std::string why_no_cuda();

}  // namespace lockstep::detail
