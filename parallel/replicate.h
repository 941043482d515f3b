// replicate: one module on several devices. All replicas share the module; what differs is the slots of its parameters
// that they read (see Parameter).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/scatter_tensor.h"
#include "lockstep/tensor/nn/module_slots.h"

namespace lockstep {

namespace detail {
// What replicas share, kept alive by each of them: a replica that outlives its deadline may outlive its caller too.
template <IsModule M>
struct ReplicaSource {
  explicit ReplicaSource(std::shared_ptr<const M> of) : module(std::move(of)), slots(*module) {}
  std::shared_ptr<const M> module;
  ModuleSlots slots;
};
}  // namespace detail

// A module as seen from one device: a callable value.
template <IsModule M>
class Replica {
 public:
  Replica(std::shared_ptr<const detail::ReplicaSource<M>> source, Device device, int index)
      : source_(std::move(source)), device_(device), index_(index) {}

  const M& module() const { return *source_->module; }
  Device device() const { return device_; }
  int index() const { return index_; }
  const ModuleSlots& slots() const { return source_->slots; }  // for the library's own use

  // Calls the module, hooks included. The arguments must be on the replica's device; meanwhile the slots there are not
  // refreshed.
  template <class... Args>
  auto operator()(Args&&... args) const {
    return visit([&](const M& of) { return of(std::forward<Args>(args)...); });
  }
  // f(module()), likewise.
  template <class F>
  auto visit(F&& f) const {
    const ModuleSlots::ReadLease lease(source_->slots, device_);
    return f(module());
  }

  // For who has several of them called: no load of new elements comes between those calls.
  void read(Reading& reading) const { source_->slots.read(reading); }

  // The slots on its device, in registration order, tied ones once. At home the parameters themselves, elsewhere
  // handles whose gradients flow home (when grad mode is on and the parameter requires one).
  std::vector<Tensor> parameters() const { return on_device(source_->slots.parameters()); }
  std::vector<Tensor> buffers() const { return on_device(source_->slots.buffers()); }

 private:
  std::vector<Tensor> on_device(const std::vector<Parameter>& parameters) const {
    std::vector<Tensor> slots;
    slots.reserve(parameters.size());
    for (const Parameter& parameter : parameters) slots.push_back(parameter.on(device_));
    return slots;
  }

  std::shared_ptr<const detail::ReplicaSource<M>> source_;
  Device device_;
  int index_;
};

// Fills the module's slots on `devices` and returns a replica for each; devices[0] is home, where the parameters
// themselves are. Copies only what has changed at home, or was itself written, since the last time; the replicas share
// a copy of the module (which shares the parameters). Gradients of all replicas are added, in replica order, into the
// module's parameters. Does not block, except for readers of a slot that must be overwritten (at most `timeout`, then
// TimeoutError). May be called from any thread.
// Throws InvalidArgument when a device comes twice, when a parameter or buffer is not on devices[0], or when it has no
// value yet.
template <IsModule M>
std::vector<Replica<M>> replicate(const M& module, const std::vector<Device>& devices,
                                  Milliseconds timeout = kDefaultTimeout) {
  detail::check_devices("replicate", devices);
  const auto source = std::make_shared<const detail::ReplicaSource<M>>(std::make_shared<const M>(module));
  source->slots.check_placement(devices[0]);
  detail::moved_bytes() += source->slots.refresh(devices, timeout).bytes;
  std::vector<Replica<M>> replicas;
  replicas.reserve(devices.size());
  for (const Device device : devices) replicas.emplace_back(source, device, static_cast<int>(replicas.size()));
  return replicas;
}

}  // namespace lockstep
