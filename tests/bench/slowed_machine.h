// The virtual host devices as a described machine, with all its links slower and all its latencies longer by one
// factor: so slow that this machine's own speed does not count. Shows whether the simulator shares links as real copies
// do.
#pragma once

#include <string>

#include "lockstep/parallel/bench/session.h"

namespace lockstep::bench {

// Copies of `bytes` in several patterns, measured on the slowed host devices and simulated. Configures the host:
// nothing may have used a device before.
void compare_with_simulated(Session& session, const std::string& machine_file, double scale, std::size_t bytes);

}  // namespace lockstep::bench
