// How long collectives take on a machine that is not there.
#pragma once

#include <string_view>

#include "lockstep/parallel/simulate/machine.h"

namespace lockstep::simulate {

// Seconds from the moment when the last rank is there. op is a recording's: all_reduce, all_gather, reduce_scatter,
// broadcast, reduce, all_to_all, gather, scatter, send, recv, barrier; bytes by the convention of nccl-tests
// (all_gather, reduce_scatter and all_to_all: the total). ranks fill one host after the other. A measured table of the
// machine wins over formulas, between its points and beyond them. Throws Error for an unknown op, and for more ranks
// than the machine has.
double collective_seconds(const Machine& machine, std::string_view op, double bytes, int ranks);

}  // namespace lockstep::simulate
