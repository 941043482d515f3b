// How much memory there is, and how much of it is free. Private to the library and its launcher.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

struct MachineMemory {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};

// Of the machine, or what the container (its cgroup, version 1 or 2) may use of it. Files that are only cached count as
// free: they give way. `root` is where proc/ and sys/ are; what is not there tells nothing.
LOCKSTEP_API MachineMemory machine_memory(const std::string& root = "/");

}  // namespace lockstep::detail
