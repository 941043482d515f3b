// A module's replicas filled, and their gradients summed, by NCCL instead of copies.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/runtime/deadline.h"
#include "lockstep/tensor/nn/replica_transport.h"

namespace lockstep::detail {

// Of CUDA devices of this process, home first, each on a GPU of its own. One object for all who ask for the same
// devices and time-out. Blocks until NCCL has made its communicators. After a failure (CommError: a collective that is
// not done `timeout` after it was enqueued, an error of NCCL's) the next use makes new ones. Throws NotSupported
// without CUDA or NCCL, InvalidArgument for devices that are no CUDA devices or share a GPU.
std::shared_ptr<ReplicaTransport> make_nccl_transport(const std::vector<Device>& devices, Milliseconds timeout);

}  // namespace lockstep::detail
