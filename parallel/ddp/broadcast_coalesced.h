// Broadcasting many tensors in few collectives.
#pragma once

#include <span>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// Rank `root`'s elements for all ranks, in few collectives. The tensors are contiguous; those on other devices than the
// communicator's go there and back, on the current streams.
void broadcast_coalesced(Communicator& communicator, std::span<const Tensor> tensors, int root);

}  // namespace lockstep::detail
