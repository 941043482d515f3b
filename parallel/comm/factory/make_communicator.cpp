#include "lockstep/parallel/comm/factory/make_communicator.h"

#include <unistd.h>

#include <fstream>

#include "lockstep/parallel/comm/factory/rank_choice.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/ranks/job.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/cuda/gpu_identity.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/log.h"

namespace lockstep {
namespace {

using detail::RankTraits;

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

// Processes with the same one can hand over memory: one kernel, and one network in which they find each other.
std::string machine_id() {
  char link[64] = {};
  const ssize_t bytes = ::readlink("/proc/self/ns/net", link, sizeof link - 1);
  return cat(first_line("/proc/sys/kernel/random/boot_id"), '/',
             std::string(link, bytes > 0 ? static_cast<std::size_t>(bytes) : 0));
}

// Why the ranks of MPI_COMM_WORLD are not this job's; "": they may be.
std::string why_not_by_mpi(const RankInfo& rank) {
  const std::string why = why_no_mpi();
  const std::string_view size = detail::environment("OMPI_COMM_WORLD_SIZE");
  // A launcher that mpirun has started hands its variables on to ranks that are not mpirun's.
  if (!why.empty() || size.empty() || size == std::to_string(rank.size)) return why;
  return cat("[mpi] expected the ", rank.size, " ranks of this job to be mpirun's, which are ", size);
}

RankTraits describe_rank(const RankInfo& rank, Device device, const std::string& backend) {
  // To ask for a library is to open it: only for one that may be chosen.
  const auto may_be = [&](const char* name) { return backend.empty() || backend == name; };
  RankTraits traits{.machine = machine_id(),
                    .process = detail::process_token(),
                    .kind = to_string(device.type()),
                    .backend = backend};
  if (device.type() == DeviceType::cuda) {
    // Not its ordinal: where every process sees one GPU alone, all of them are number 0.
    traits.gpu = cat(traits.machine, '#', detail::gpu_identity(device));
    if (may_be("nccl")) traits.no_nccl = why_no_nccl();
  } else if (may_be("mpi")) {
    traits.no_mpi = why_not_by_mpi(rank);
  }
  return traits;
}

std::vector<RankTraits> meet(Store& store, const RankInfo& rank, const RankTraits& mine, std::string& group,
                             Deadline deadline) {
  const detail::EndedRanks ended = detail::ended_ranks_of_job(store, rank);
  // Every rank comes once per communicator, so the arrivals number the communicators of a store.
  const std::int64_t round = (store.add("make_communicator/arrivals", 1) - 1) / rank.size;
  group = cat("make_communicator/", round);
  store.set(cat(group, "/rank/", rank.rank), detail::pack(mine));
  std::vector<RankTraits> ranks;
  for (int r = 0; r < rank.size; ++r) {
    try {
      const auto missing = [&](int other) {
        return other >= r && other < rank.size && !store.try_get(cat(group, "/rank/", other));
      };
      ranks.push_back(detail::unpack(
          detail::get_unless_ended(store, cat(group, "/rank/", r), deadline, ended, missing, "make_communicator")));
    } catch (const TimeoutError&) {
      throw CommError(r, "make_communicator", cat("rank ", r, " of ", rank.size, " did not come before the deadline"));
    }
  }
  return ranks;
}

Device default_device(const RankInfo& rank) {
  const std::vector<Device> devices = accelerators();
  LOCKSTEP_CHECK(!devices.empty(), "[make_communicator] expected a host or CUDA device, got none");
  return devices[static_cast<std::size_t>(rank.local_rank) % devices.size()];
}

std::unique_ptr<Communicator> mpi_communicator_of(const RankInfo& rank, Device device, Milliseconds timeout) {
  std::unique_ptr<Communicator> made = make_mpi_communicator(device, {.timeout = timeout});
  LOCKSTEP_CHECK(made->rank() == rank.rank && made->size() == rank.size,
                 "[make_communicator] expected the rank that MPI gives, which is rank ", made->rank(), " of ",
                 made->size(), ", got rank ", rank.rank, " of ", rank.size, " from ", rank.source);
  return made;
}

std::unique_ptr<Communicator> make_what_suits(const CommunicatorOptions& options) {
  const RankInfo& rank = options.rank;
  LOCKSTEP_CHECK(rank.size > 0 && rank.rank >= 0 && rank.rank < rank.size,
                 "[make_communicator] expected a rank below the number of ranks, got rank ", rank.rank, " of ",
                 rank.size);
  const Deadline deadline = Deadline::after(options.timeout);
  const Device device = options.device ? *options.device : default_device(rank);
  ordinal(device);  // throws for one that does not exist
  const std::string backend =
      !options.backend.empty() ? options.backend : std::string(detail::environment("LOCKSTEP_COMMUNICATOR"));
  std::shared_ptr<Store> store = options.store;
  if (!store && !rank.store.empty() && rank.size > 1) store = connect_store(rank, {.connect_timeout = options.timeout});
  std::vector<RankTraits> ranks{describe_rank(rank, device, backend)};
  std::string group = "make_communicator/alone";
  if (rank.size > 1 && !store) {
    LOCKSTEP_CHECK(device.type() == DeviceType::host && ranks[0].no_mpi.empty(),
                   "[make_communicator] expected a store in which ", rank.size,
                   " ranks find each other (LOCKSTEP_STORE=host:port, or MASTER_ADDR and MASTER_PORT), got none, and "
                   "without one only MPI is left, for host devices",
                   ranks[0].no_mpi.empty() ? "" : ": ", ranks[0].no_mpi);
    LOCKSTEP_CHECK(backend.empty() || backend == "mpi", "[make_communicator] expected a store for ", backend,
                   ", got none");
    ranks.resize(static_cast<std::size_t>(rank.size), ranks[0]);
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].machine = ranks[r].process = std::to_string(r);
  } else if (rank.size > 1) {
    ranks = meet(*store, rank, ranks[0], group, deadline);
  } else if (!store) {
    store = make_local_store();
  }
  const detail::RankChoice choice = detail::choose(ranks);
  if (rank.rank == 0) log(LogLevel::info, cat("[make_communicator] ", choice.backend, ": ", choice.reason));
  const std::shared_ptr<Store> mine = store ? make_prefix_store(store, group) : nullptr;
  if (choice.backend == "nccl")
    return make_nccl_communicator(mine, rank.rank, rank.size, device, {.timeout = options.timeout});
  if (choice.backend == "mpi") return mpi_communicator_of(rank, device, options.timeout);
  if (choice.backend == "peer")
    return make_peer_communicator(mine, rank.rank, rank.size, device, {.timeout = options.timeout});
  return make_process_communicator(mine, rank, device, {.timeout = options.timeout});
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options) {
  return detail::make_in_job(options.rank, [&] { return make_what_suits(options); });
}

}  // namespace lockstep
