// The body of a parameter: its home, its slots on other devices, and the graph's ends there.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/engine/gradient_sink.h"
#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/nn/read_gate.h"
#include "lockstep/tensor/nn/slot_refresh.h"

namespace lockstep {

class SlabSet;
struct Shard;
class ParameterBody;

// Stores what arrives, and reduces it at the end of the backward.
GradientSink& replica_gradients();

// The graph's end on a device other than home: of the parameter's slot there.
class SlotMirror final : public MirrorNode {
 public:
  SlotMirror(ParameterBody* body, Device device);
  LeafOwner* owner() const override;
  int replica() const override;  // the slot's replica number, as it was last
  void leave_slot();             // when the slot goes

 private:
  ParameterBody* body_;  // whose slot this is; null when the parameter is gone or has moved
  const Device device_;
  int last_replica_ = 0;
};

// A copy of a parameter on a device other than home.
struct Slot {
  Slot(int of, Tensor elements) : ordinal(of), value(std::move(elements)) {}

  const int ordinal;                           // of the device
  Tensor value;                                // never changes its place
  std::atomic<std::uint64_t> home_version{0};  // of the elements it holds
  std::atomic<std::uint64_t> own_version{0};   // after the refresh that wrote them
  std::atomic<bool> filled{false};
  std::atomic<bool> arrived{false};          // it is known that `refresh` has written it
  std::atomic<int> replica{0};               // position in the device list of the last refresh
  std::mutex mutex;                          // refresh, readers, node
  std::shared_ptr<SlotRefresh> refresh;      // that filled it
  std::size_t pieces = 0;                    // with which of its pieces: the first so many
  std::vector<detail::StreamBody*> readers;  // streams that have read it since
  Ref<SlotMirror> node;

  // The device failed to write it. While the refresh is under way nobody knows; what waits for it fails with it then.
  bool refresh_failed();  // under the mutex
};

// The slots of a parameter, as many as there are devices that it is copied to. Finding one takes no lock, also while
// another one is added; one is added by one thread at a time.
class SlotTable {
 public:
  SlotTable() = default;
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;
  ~SlotTable() { clear(); }

  // Of the device with this ordinal, or null.
  Slot* find(int ordinal) const;
  Slot& add(int ordinal, Tensor value);
  void clear();  // nobody reads them any more
  std::size_t places() const {
    const Places* const places = places_.load(std::memory_order_acquire);
    return places ? places->count : 0;
  }

 private:
  // A hash table of open addressing, where devices with ordinals in a row do not collide. It may be full.
  struct Places {
    std::size_t count;                // a power of two
    std::unique_ptr<Places> smaller;  // that it was grown from: somebody may be reading it
    std::unique_ptr<std::atomic<Slot*>[]> slots;
  };
  static Slot* find_in(const Places& places, int ordinal);
  static void put(Places& places, Slot* slot);

  std::atomic<Places*> places_{nullptr};
  std::size_t used_ = 0;
};

class ParameterBody final : public LeafOwner, public std::enable_shared_from_this<ParameterBody> {
 public:
  ParameterBody(const Tensor& value, bool is_buffer, bool requires_grad);
  ParameterBody(const Shape& shape, DType dtype);  // uninitialised
  ~ParameterBody();
  ParameterBody(const ParameterBody&) = delete;
  ParameterBody& operator=(const ParameterBody&) = delete;

  Tensor home;  // undefined while uninitialised
  Shape shape;
  DType dtype;
  std::optional<Device> placed;        // where an uninitialised one is to have its elements; else where they come from
  std::optional<MemoryFormat> format;  // in which; likewise
  bool is_buffer = false;
  bool sparse = false;                 // gets rows as gradients: stays out of the slabs in which others sum matrices
  bool keeps_dtype = false;            // whatever its module is converted to
  bool listed = false;                 // some module's members name it
  std::shared_ptr<const Shard> shard;  // null: whole
  std::string name;
  Ref<Node> leaf;  // kept while requires_grad is off, with the gradient

  // Of the home slot, without gaps, and so of all others and of gradients.
  const Strides& strides() const { return home.strides(); }

  Slot* slot(int ordinal) const { return slots_.find(ordinal); }
  Slot& make_slot(int ordinal, Tensor value) { return slots_.add(ordinal, std::move(value)); }
  std::size_t places_for_slots() const { return slots_.places(); }
  void drop_slots();  // when home moves
  // The tensor on `device` as Parameter::on gives it, substitutes apart.
  Tensor on(Device device);
  void set_leaf(Ref<Node> node);  // the gradient of home, from now on

  std::string describe() const override;  // "parameter 'conv.weight'"
  std::shared_ptr<LeafOwner> hold() override;
  bool begin_backward(std::uint64_t call, const void* backward) override;
  void end_backward(const void* backward) override;
  // Of a call that trains it, for longer than a backward.
  void claim(std::uint64_t call);
  void unclaim();
  GradientSink& sink() override { return replica_gradients(); }

  // Of those who read its elements at home; null until a module that has it is used. Set once (detail::share_gate).
  const std::shared_ptr<ReadGate>* gate() const { return has_gate_.load(std::memory_order_acquire) ? &gate_ : nullptr; }
  void set_gate(std::shared_ptr<ReadGate> gate) {
    gate_ = std::move(gate);
    has_gate_.store(true, std::memory_order_release);
  }

  std::shared_ptr<SlabSet> slabs;
  int slab_entry = -1;

 private:
  std::shared_ptr<ReadGate> gate_;
  std::atomic<bool> has_gate_{false};
  SlotTable slots_;
  std::mutex claim_mutex_;
  std::uint64_t claimed_by_ = 0;
  int claims_ = 0;
  const void* backward_ = nullptr;  // the first of those under way
  int begins_ = 0;                  // of that one
};

// Of the parameter whose leaf this is; null when it is nobody's any more.
inline ParameterBody* body_of(const LeafNode& leaf) {
  return static_cast<ParameterBody*>(leaf.owner());  // there are no other owners
}

// Keeps `gradient` in the device's gradient slab, on the device's current stream, until reduce.
void store_replica_gradient(ParameterBody& body, Device device, const Tensor& gradient);
// Sums gradients in replica order (home first), and adds the sums to the home parameters' grads. Those that have
// neither a matrix nor rows stand for what was stored. Whoever calls it keeps the bodies alive.
void reduce_replica_gradients(std::vector<OwnedGradient> gradients);

}  // namespace lockstep
