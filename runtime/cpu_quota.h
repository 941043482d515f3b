// How much of the machine's processors a container or a service may use. Private to the library.
#pragma once

#include <string>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// How many processors this process's cgroups (version 1 or 2, such as `docker run --cpus` and systemd's CPUQuota make)
// let it keep busy, rounded up; 0 where they set no limit. More threads than that are stopped for a part of each
// period, and whoever waits for them with them. `root` is where proc/ and sys/ are.
LOCKSTEP_API int cpu_quota(const std::string& root = "/");

}  // namespace lockstep::detail
