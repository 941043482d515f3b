// Parameters and buffers: handles to a shared body that has one slot per device.
//
// The home slot is the tensor itself; the slots on other devices are mirrors that `replicate` fills and refreshes. A
// layer asks for the slot on the device of its input: `weight.on(x.device())`. So one module tree serves all replicas.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/tensor/ops/sparse_gradient.h"

namespace lockstep {

class ParameterBody;

class LOCKSTEP_API Parameter {
 public:
  Parameter() = default;  // absent, such as the bias of a layer without one
  // `value` becomes the home slot: its elements are shared where they have no gaps and are contiguous or
  // channels_last, else copied. It must not be part
  // of a graph. Integers cannot require a gradient: pass false.
  explicit Parameter(const Tensor& value, bool requires_grad = true);
  // Has a shape but no elements yet; using it is an InvalidArgument until assign().
  static Parameter uninitialized(const Shape& shape, DType dtype);

  bool defined() const { return body_ != nullptr; }
  const std::string& name() const;  // as the module that lists it names it; "" before
  const Shape& shape() const;
  DType dtype() const;
  Device device() const;  // home

  // The slot on `device`. At home the parameter itself, elsewhere a handle on the mirror whose gradient flows home
  // (when grad mode is on and the parameter requires one). Waits, on the current stream, for a refresh in progress.
  // Throws InvalidArgument, naming the parameter and the devices that have it, when `device` has no slot. Inside a
  // SubstituteScope: the substituted tensor.
  Tensor on(Device device) const;
  // The home tensor (a leaf).
  Tensor tensor() const;

  bool requires_grad() const;
  void set_requires_grad(bool requires_grad) const;
  Tensor grad() const { return tensor().grad(); }
  void set_grad(const Tensor& grad) const { tensor().set_grad(grad); }
  // As those of the home tensor: the rows of a weight that an embedding with `sparse` uses (sparse_gradient.h).
  SparseGradient sparse_grad() const;
  void set_sparse_grad(const SparseGradient& grad) const;
  void zero_grad() const { set_grad({}); }

  // Copies `value` (same shape; any dtype and device) into the home slot, between calls of modules that read it, as
  // ModuleBase::load_state_dict does. Inside such a call: at once, as an in-place operation.
  void assign(const Tensor& value) const;

  ParameterBody* body() const { return body_.get(); }
  friend bool operator==(const Parameter& a, const Parameter& b) { return a.body_ == b.body_; }

 protected:
  explicit Parameter(std::shared_ptr<ParameterBody> body) : body_(std::move(body)) {}
  std::shared_ptr<ParameterBody> body_;
  friend class Members;
};

// State that is saved and replicated with a module but not trained (running statistics). An in-place update of the
// slot at home stays; one of a mirror is lost at the next refresh.
class LOCKSTEP_API Buffer : public Parameter {
 public:
  Buffer() = default;
  explicit Buffer(const Tensor& value, bool requires_grad = false);
};

// While it lives, `on()` of the given parameters gives the given tensors (moved to the asked device, differentiably) in
// this thread and in the replicas it starts. Scopes nest; the innermost that names a parameter wins.
class LOCKSTEP_API SubstituteScope {
 public:
  // One tensor per parameter; shapes must agree.
  SubstituteScope(const std::vector<Parameter>& parameters, const std::vector<Tensor>& tensors);
  SubstituteScope(const SubstituteScope&) = delete;
  SubstituteScope& operator=(const SubstituteScope&) = delete;
  ~SubstituteScope();

 private:
  std::unique_ptr<Substitution> substitution_;
  const Substitution* previous_;
};

namespace detail {

// Puts new elements into parameters, all between the same calls. Checks nothing; converts first and copies then.
void assign_all(const char* op, std::span<const std::pair<Parameter, Tensor>> assignments);

}  // namespace detail

}  // namespace lockstep
