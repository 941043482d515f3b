#include "lockstep/parallel/comm/factory/backends.h"

#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_version.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/nccl/nccl_version.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// The ranks of MPI_COMM_WORLD need not be this job's.
std::string why_not_by_mpi(const RankInfo& rank) {
  std::string why = why_no_mpi();
  const std::string_view size = environment("OMPI_COMM_WORLD_SIZE");
  // A launcher that mpirun has started hands its variables on to ranks that are not mpirun's.
  if (!why.empty() || size.empty() || size == std::to_string(rank.size)) return why;
  return cat("[mpi] expected the ", rank.size, " ranks of this job to be mpirun's, which are ", size);
}

std::unique_ptr<Communicator> make_by_mpi(const BackendArgs& args) {
  std::unique_ptr<Communicator> made = make_mpi_communicator(args.device, {.timeout = args.timeout});
  LOCKSTEP_CHECK(made->rank() == args.rank.rank && made->size() == args.rank.size,
                 "[make_communicator] expected the rank that MPI gives, which is rank ", made->rank(), " of ",
                 made->size(), ", got rank ", args.rank.rank, " of ", args.rank.size, " from ", args.rank.source);
  return made;
}

std::string shared_gpu(const RankTopology& ranks) {
  if (!ranks.sharing_a_gpu) return "";
  return cat("needs a GPU for every rank, and ranks ", ranks.sharing_a_gpu->first, " and ", ranks.sharing_a_gpu->second,
             " share one");
}

constexpr CommunicatorBackend kBackends[] = {
    {.name = "nccl",
     .works_on = "cuda",
     .default_for = "cuda",
     .why_not_here = [](const RankInfo&) { return why_no_nccl(); },
     .why_not_together = shared_gpu,
     .make =
         [](const BackendArgs& args) {
           return make_nccl_communicator(
               args.store, args.rank.rank, args.rank.size, args.device,
               {.timeout = args.timeout, .blocking = detail::environment_flag("LOCKSTEP_NCCL_BLOCKING")});
         },
     .library = "NCCL",
     .library_version = nccl_version},
    {.name = "peer",
     .default_for = "cuda",
     .why_not_together =
         [](const RankTopology& ranks) {
           return std::string(ranks.processes == 1 ? "" : "needs ranks that are threads of one process");
         },
     .make =
         [](const BackendArgs& args) {
           return make_peer_communicator(args.store, args.rank.rank, args.rank.size, args.device,
                                         {.timeout = args.timeout});
         }},
    {.name = "shared_memory",
     .works_on = "host",
     .default_for = "host",
     .why_not_together =
         [](const RankTopology& ranks) { return std::string(ranks.machines == 1 ? "" : "needs ranks on one machine"); },
     .make =
         [](const BackendArgs& args) {
           return make_process_communicator(args.store, args.rank, args.device, {.timeout = args.timeout});
         }},
    {.name = "mpi",
     .works_on = "host",
     .default_for = "host",
     .needs_store = false,
     .why_not_here = why_not_by_mpi,
     .make = make_by_mpi,
     .library = "MPI",
     .library_version = mpi_version},
    {.name = "loopback",
     .why_not_together =
         [](const RankTopology& ranks) { return std::string(ranks.ranks == 1 ? "" : "needs a rank alone"); },
     .make = [](const BackendArgs& args) { return make_loopback_communicator(args.device, args.timeout); }},
};

}  // namespace

std::span<const CommunicatorBackend> communicator_backends() { return kBackends; }

}  // namespace lockstep::detail
