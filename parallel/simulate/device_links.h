// A machine's links in the words of the library, for recordings that are meant for it (record::set_links).
#pragma once

#include <vector>

#include "lockstep/parallel/simulate/machine.h"
#include "lockstep/runtime/backend.h"

namespace lockstep::simulate {

// Of the first `devices` of a host, from i to j at i * devices + j: the slowest link of the route, for copies by an
// engine, against the fastest such pair of the host; a line of its own where no other route passes any of its links,
// and devices carry several copies between peers at once. Throws Error that names both numbers when the host has fewer
// devices.
std::vector<DeviceLink> device_links(const Machine& machine, int devices);

}  // namespace lockstep::simulate
