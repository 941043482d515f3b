// What a node can say of itself without the others: its devices, its memory, its disks, its build.
#pragma once

#include "lockstep/parallel/launch/health_report.h"

namespace lockstep::launch {

// Asks the devices for their properties, and the other libraries for their versions. Leaves nothing behind, and reports
// what it cannot find out instead of throwing.
NodeHealth look_at_this_node(const Options& options);

}  // namespace lockstep::launch
