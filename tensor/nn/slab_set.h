// The flat memory of replicated parameters: per device, dtype and kind (parameters, buffers) one slab of values, and
// for parameters one of incoming gradients per device and one of summed gradients at home. All have one layout.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/read_gate.h"
#include "lockstep/tensor/nn/replica_transport.h"

namespace lockstep {

class SlabSet : public std::enable_shared_from_this<SlabSet> {
 public:
  struct Entry {
    ParameterBody* body;  // null when it is gone or has left
    int slab;
    std::size_t offset_bytes, bytes;
    Ref<Storage> home;  // its slice at home
    Ref<Storage> grad;  // its slice of the summed gradients, once there are any
  };
  struct Slab {
    DType dtype;
    bool buffers, sparse;
    std::size_t bytes = 0;
    std::vector<int> entries;                                  // in order of offset
    std::vector<Ref<Storage>> values, incoming;                // by device
    std::unique_ptr<std::atomic<PendingReads*>[]> reads = {};  // of the values by device, for who has not the mutex
    Ref<Storage> grads;
  };

  // Puts bodies that are in no slab set into a new one: their home elements move into its slabs.
  static void place(std::span<ParameterBody* const> bodies);

  // The body goes (its destructor) or moves elsewhere.
  void forget(ParameterBody& body);

  // A device that is brought up to date.
  struct Mirror {
    Device device;
    std::vector<int> stale;  // entries, in order
    bool at_once;            // its streams do at once what they get
  };
  // That with those entries of `bodies` (all of this set) whose slots there are not up to date. Under `mutex`.
  Mirror mirror(std::span<ParameterBody* const> bodies, Device device, int replica);
  // Fills them, while the devices' gates are closed: each mirror from the one before it that lacks the same.
  void refresh(std::span<const Mirror> mirrors, TransferStats& stats);

  // The transport has failed since: mirrors may hold anything, and are brought up to date anew. True when it has.
  bool in_doubt();
  void forget_mirrors();

  Device home() const { return home_; }
  // Of those who read the slots on a device.
  ReadGate& gate(Device device) { return gates_[static_cast<std::size_t>(ordinal(device))].gate; }

  std::mutex mutex;         // layout, refresh
  std::mutex reduce_mutex;  // incoming and summed gradients
  std::vector<Entry> entries;
  std::vector<Slab> slabs;
  TransferStats reduced;  // under reduce_mutex
  // Streams on which sums go beside a backward; one backward at a time has them. Under reduce_mutex.
  std::map<Device, Stream> sum_streams;
  bool sums_beside = false;

  // What the last refresh was asked to use, and gradients go by; null: copies. Under reduce_mutex; for who has no lock,
  // which one it is.
  std::shared_ptr<ReplicaTransport> transport;
  std::uint64_t transport_failures = 0;  // those that the mirrors have been refreshed after
  std::atomic<const ReplicaTransport*> transport_in_use{nullptr};

 private:
  explicit SlabSet(Device home) : home_(home), gates_(new MirrorGate[all_devices().size()]) {}
  Slot& slot_for(Entry& entry, Device device);

  struct MirrorGate {
    ReadGate gate{ReadGate::Of::mirrors};
  };

  Device home_;
  std::unique_ptr<MirrorGate[]> gates_;  // by device
};

namespace detail {
// A tensor over part of a slab.
Tensor slab_range(const Ref<Storage>& slab, DType dtype, std::size_t offset_bytes, std::size_t bytes);
// Zeroed memory for a whole slab (the gaps between entries take part in sums).
Ref<Storage> zeroed_slab(Device device, DType dtype, std::size_t bytes);
// The body's home moves out of its slab set.
void leave_slabs(ParameterBody& body);
}  // namespace detail

}  // namespace lockstep
