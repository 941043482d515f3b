// The table of the CUDA devices for programs on the fake: each entry launches the real kernels, which the fake checks
// and which compute nothing, and then lets the host's entry compute the same on the same stream.
#pragma once

#include "lockstep/kernels/table.h"

namespace fake_cuda {

const lockstep::KernelTable& checked_table();

}  // namespace fake_cuda
