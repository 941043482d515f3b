// A build without CUDA.
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/nccl/nccl_transport.h"
#include "lockstep/parallel/comm/nccl/nccl_version.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

std::string detail::nccl_version() { return ""; }
bool detail::nccl_shares_gpus() { return false; }
std::string why_no_nccl() { return "[nccl] expected a build with CUDA, got one without"; }

std::unique_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<Store>&, int, int, Device,
                                                     const NcclOptions&) {
  throw NotSupported(why_no_nccl());
}

std::shared_ptr<ReplicaTransport> detail::make_nccl_transport(const std::vector<Device>&, Milliseconds) {
  throw NotSupported(why_no_nccl());
}

}  // namespace lockstep
