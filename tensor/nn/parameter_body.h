// The body of a parameter: its slots, and the edge from a mirror home.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/nn/read_gate.h"

namespace lockstep {

class SlabSet;

// The sink of gradients on a device other than home. In a plain backward the engine stores what arrives here and sums
// over the replicas at the end; in grad() and under create_graph it is an ordinary differentiable copy home. So it is,
// in every backward, once the slot is gone: its edge keeps the leaf, wherever that is by then.
class MirrorNode final : public NodeOf<1> {
 public:
  MirrorNode(ParameterBody* body, Device device);
  const char* name() const override { return "mirror"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;
  // Place in the order of sums: the slot's replica number, as it was last.
  int replica() const;
  void leave_slot();  // when the slot goes

  ParameterBody* body;  // whose slot this is; null when the parameter is gone or has moved
  const Device device;

 private:
  int last_replica_ = 0;
};

// A copy of a parameter on a device other than home.
struct Slot {
  Tensor value;                                // never changes its place
  std::atomic<std::uint64_t> home_version{0};  // of the elements it holds
  std::atomic<std::uint64_t> own_version{0};   // after the refresh that wrote them
  std::atomic<bool> filled{false};
  std::atomic<bool> arrived{false};  // the last refresh is known to have succeeded
  std::atomic<int> replica{0};       // position in the device list of the last refresh
  std::mutex mutex;                  // ready, readers, node
  Event ready;                       // the last refresh
  std::vector<Stream*> readers;      // streams that have read it since
  Ref<MirrorNode> node;

  // The device failed to write it. While the refresh is under way nobody knows; what waits for it fails with it then.
  bool refresh_failed();  // under the mutex
};

class ParameterBody : public std::enable_shared_from_this<ParameterBody> {
 public:
  ParameterBody(Tensor value, bool is_buffer, bool requires_grad);
  ParameterBody(const Shape& shape, DType dtype);  // uninitialised
  ~ParameterBody();
  ParameterBody(const ParameterBody&) = delete;
  ParameterBody& operator=(const ParameterBody&) = delete;

  Tensor home;  // undefined while uninitialised
  Shape shape;
  DType dtype;
  std::optional<Device> placed;  // where an uninitialised one is to have its elements; else where they come from
  bool is_buffer = false;
  bool sparse = false;  // gets rows as gradients: stays out of the slabs in which others sum matrices
  bool listed = false;  // some module's members name it
  std::string name;
  Ref<Node> leaf;  // kept while requires_grad is off, with the gradient

  Slot* slot(int ordinal) const { return slots_[ordinal].load(std::memory_order_acquire); }
  Slot& make_slot(int ordinal, Tensor value);
  void drop_slots();  // when home moves
  // The tensor on `device` as Parameter::on gives it, substitutes apart.
  Tensor on(Device device);
  std::string describe() const;  // "parameter 'conv.weight'"

  // Training of the body by one call at a time (a call may claim it again).
  void claim(std::uint64_t call);
  void unclaim();

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
  std::array<std::atomic<Slot*>, kMaxDevices> slots_{};
  std::mutex claim_mutex_;
  std::uint64_t claimed_by_ = 0;
  int claims_ = 0;
};

// A number for a training call that has none yet.
std::uint64_t next_training_call();

// One replica's gradient of a parameter, on its way home. Whoever has one keeps the body alive.
struct ReplicaGradient {
  ParameterBody* body;
  Device device;
  SparseGradient rows;  // undefined: a matrix, which was stored
};
// Keeps `gradient` in the device's gradient slab, on the device's current stream, until reduce.
void store_replica_gradient(ParameterBody& body, Device device, const Tensor& gradient);
// Sums what was stored, in replica order (home first), and adds the sums to the home parameters' grads.
void reduce_replica_gradients(std::vector<ReplicaGradient> stored);

}  // namespace lockstep
