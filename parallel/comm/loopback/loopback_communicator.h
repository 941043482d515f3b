// A communicator of one rank: programs that are written for ranks run alone, on any device, with no library, no store
// and no thread.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

// Rank 0 of 1. A collective copies its input to its output, where they differ; a split has the rank alone again. Used
// by the thread that has it, on its current stream, and waits for nobody. `device` is a host or CUDA device:
// InvalidArgument otherwise.
LOCKSTEP_API std::unique_ptr<Communicator> make_loopback_communicator(Device device,
                                                                      Milliseconds timeout = kDefaultTimeout);

}  // namespace lockstep
