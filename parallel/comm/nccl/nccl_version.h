// The version of NCCL that is there. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

// "2.28.9"; empty without one that can be used. Opens the library.
std::string nccl_version();

}  // namespace lockstep::detail
