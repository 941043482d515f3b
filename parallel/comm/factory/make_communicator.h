// The communicator that suits the ranks of a job.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/ranks/connect_store.h"
#include "lockstep/parallel/comm/ranks/rank_info.h"

namespace lockstep {

struct CommunicatorOptions {
  std::shared_ptr<Store> store =
      {};  // where the ranks meet; null: connect_store(rank), or MPI where there is no address
  RankInfo rank = discover_ranks();             // one alone, whatever a launcher says: RankInfo{}
  std::optional<Device> device = std::nullopt;  // default: the accelerator with the number of the local rank, in turn
  // By name (docs/distributed.md has a table): "nccl", …; empty: LOCKSTEP_COMMUNICATOR, else what suits.
  std::string backend = {};
  Milliseconds timeout = kDefaultTimeout;  // of this call, and of every collective
};

// All ranks call it, with the same backend. Without one:
//   CUDA devices   different GPUs and NCCL on every rank: nccl; threads of one process: peer
//   host devices   one machine: shared_memory; several, under mpirun: mpi
// The choice is logged (level info) with its reason. Blocks until all ranks have come. A store serves one call after
// another, also of fewer ranks with numbers from 0 again. After a call to which only some of the ranks came, the next
// of as many ranks needs another store, or make_prefix_store with a name that all of them use for the first time.
// Throws InvalidArgument for a backend or a device that does not exist, for ranks that want different backends or kinds
// of devices, and NotSupported, on every rank and with the reason, where nothing suits or what is asked for cannot be
// had.
LOCKSTEP_API std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options = {});

}  // namespace lockstep
