// Broadcasting many tensors in few collectives.
#pragma once

#include <span>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// Rank `root`'s elements for all ranks, in few collectives. All tensors on the communicator's device, contiguous.
void broadcast_coalesced(Communicator& communicator, std::span<const Tensor> tensors, int root);

}  // namespace lockstep::detail
