// The flat memory of replicated parameters: per device, dtype and kind (parameters, buffers) one slab of values, and
// for parameters one of incoming gradients per device and one of summed gradients at home. All have one layout.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/tensor/nn/mirror.h"
#include "lockstep/tensor/nn/slots.h"

namespace lockstep {

// Readers of the slots of one device on one side, a refresh of them on the other.
class ReadGate {
 public:
  void enter();  // waits, with the default deadline, while a refresh is going on
  void leave();
  void close(Deadline deadline, Device device);  // waits until no reader is inside; TimeoutError at the deadline
  void open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int readers_ = 0;
  bool closed_ = false;
};

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
    std::vector<int> entries;  // in order of offset
    Ref<Storage> values[kMaxDevices], incoming[kMaxDevices];
    Ref<Storage> grads;
  };

  // Puts bodies that are in no slab set into a new one: their home elements move into its slabs.
  static void place(std::span<ParameterBody* const> bodies);

  // The body goes (its destructor) or moves elsewhere.
  void forget(ParameterBody& body);

  // Brings the slots of `bodies` (all of this set) on `devices` up to date.
  void refresh(std::span<ParameterBody* const> bodies, std::span<const Device> devices, Deadline deadline,
               TransferStats& stats);

  Device home() const { return home_; }
  ReadGate& gate(int ordinal) { return gates_[static_cast<std::size_t>(ordinal)]; }

  std::mutex mutex;         // layout, refresh
  std::mutex reduce_mutex;  // incoming and summed gradients
  std::vector<Entry> entries;
  std::vector<Slab> slabs;
  TransferStats reduced;  // under reduce_mutex

 private:
  explicit SlabSet(Device home) : home_(home) {}
  void refresh_device(Device device, std::span<const int> stale, Deadline deadline, TransferStats& stats);
  Slot& slot_for(Entry& entry, Device device);

  Device home_;
  ReadGate gates_[kMaxDevices];
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
