// Which machine a process runs on. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

// Processes with the same one can hand over memory: one kernel, and one network in which they find each other.
std::string machine_id();

}  // namespace lockstep::detail
