// Communicators over NCCL: a rank is a CUDA device of its own, in a thread or a process, on any number of hosts.
//
// Needs no NCCL to build or start: the library is opened when the first communicator is made (LOCKSTEP_NCCL_LIBRARY
// names it; version 2.14 or later).
//
// Failures. A host wait for the device also looks at the communicators of the process, and a thread of the library does
// when nobody waits: at what NCCL says, at the time-out of the oldest collective, and at the store, where every rank
// publishes its failure. Then all communicators of the process with work on the way are aborted, and the CommError
// is thrown where the host waits for the device, once, and by every later call. Results of the broken collectives are
// undefined.
//
// NCCL adds in an order of its own: the same bits on all ranks, and for the same number of ranks and elements on the
// same machine, but not those of other communicators. `avg` is NCCL's.
//
// Graphs (runtime/graph/graph.h). Captures record collectives where the process has one rank and no other communicator
// over NCCL, and ranks compare nothing first; else they throw NotSupported. A replay is one piece of work on the way,
// under the name and number of its first collective. NCCL's part of a communicator stays as long as such graphs.
//
// Ranks that are threads of one process meet on the host before every collective; ranks in processes do not. While a
// communicator is made or destroyed, NCCL allocates and frees device memory: no collective of the process should be on
// its way then.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep {

struct NcclOptions {
  // Of making it, and of each collective from when it is enqueued.
  Milliseconds timeout = kDefaultTimeout;
  // Every rank compares what it is about to call with all others, through the store, before it is enqueued: slow, and
  // tells at once who calls something else. (Ranks that are threads of one process always do.)
  bool check_collectives = false;
  // NCCL's calls return when they are done, instead of saying that they are in progress: of a communicator that does
  // not block NCCL makes a thread for each call. A call that waits for a rank that does not come is ended at its
  // time-out by a thread of the library, which aborts the communicator. Ranks may differ. make_communicator takes it
  // from LOCKSTEP_NCCL_BLOCKING=1.
  bool blocking = false;
};

// Called by every rank, with a store that all of them share, of which it uses the keys that begin with "nccl/"; it may
// be called again. Blocks until all ranks have come. Throws NotSupported without CUDA or NCCL, InvalidArgument for
// devices that share a GPU within a process, CommError when a rank fails, TimeoutError when one does not come.
LOCKSTEP_API std::unique_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<Store>& store, int rank,
                                                                  int size, Device device,
                                                                  const NcclOptions& options = {});

// Empty when NCCL can be used, else why not.
LOCKSTEP_API std::string why_no_nccl();
inline bool nccl_available() { return why_no_nccl().empty(); }

}  // namespace lockstep
