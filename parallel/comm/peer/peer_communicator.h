// Communicators between threads of one process: each rank is a device, and copies between devices do the rest. For
// logical devices that share a GPU, for machines without NCCL, and for virtual host devices.
//
// A rank's host thread waits for the other ranks to come to the same collective, never for a device: memory is guarded
// by events that the ranks exchange. Sums are formed in the order of the ranks, so all ranks get the same bits, and the
// same as from other communicators but NCCL's: of large messages each rank adds up its share, of small ones all.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep {

struct PeerOptions {
  Milliseconds timeout = kDefaultTimeout;
  // Of memory that a reduction takes from the rank's device at most, for the pieces of other ranks.
  std::size_t scratch_bytes = std::size_t{32} << 20;
  // all_reduce and reduce of messages that have no more than this, those of all ranks together: each rank reads all and
  // adds up everything, so that the ranks meet twice instead of three times. 0: never. The same for all ranks.
  std::size_t one_shot_bytes = std::size_t{128} << 10;
};

// One communicator per device, by rank; each is to be used by a thread of its own. Throws InvalidArgument unless the
// devices are different ones of one kind, host or CUDA. Finds out which devices reach each other (runtime/copy/peer.h).
LOCKSTEP_API std::vector<std::unique_ptr<Communicator>> make_peer_group(const std::vector<Device>& devices,
                                                                        const PeerOptions& options = {});

// The same, called by each rank in its own thread; they find each other through `store`, of which they use the keys
// that begin with "peer/" (a prefix store makes several groups possible). Blocks until all have come: TimeoutError at
// the deadline. Throws CommError, on all ranks, when they are not all threads of one process.
LOCKSTEP_API std::unique_ptr<Communicator> make_peer_communicator(const std::shared_ptr<Store>& store, int rank,
                                                                  int size, Device device,
                                                                  const PeerOptions& options = {});

}  // namespace lockstep
