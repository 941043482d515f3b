#include "lockstep/tensor/nn/parameter.h"

#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/autograd/substitution.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/read_gate.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

// ---- MirrorNode

MirrorNode::MirrorNode(ParameterBody* mirrored, Device on) : body(mirrored), device(on) {
  kind_ = Kind::mirror;
  LOCKSTEP_EDGE(stream = &default_stream(device));
  edges()[0] = {body->leaf, 0};
}

int MirrorNode::replica() const {
  const Slot* slot = body ? body->slot(ordinal(device)) : nullptr;
  return slot ? slot->replica.load(std::memory_order_relaxed) : last_replica_;
}

void MirrorNode::leave_slot() {
  last_replica_ = replica();
  body = nullptr;
}

void MirrorNode::backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
  grad_inputs[0] = grad_outputs[0].to(edges()[0].node->stream->device());
}

// ---- Slot

bool Slot::refresh_failed() {
  if (arrived.load(std::memory_order_relaxed)) return false;
  const Event::Progress progress = ready.progress();
  if (progress == Event::Progress::done) arrived.store(true, std::memory_order_release);
  return progress == Event::Progress::failed;
}

// ---- ParameterBody

ParameterBody::ParameterBody(Tensor value, bool buffer, bool requires_grad)
    : shape(value.shape()), dtype(value.dtype()), is_buffer(buffer) {
  LOCKSTEP_CHECK(value.is_leaf(), "[parameter] expected a value outside any graph, got ", value.describe(),
                 "; detach() it first");
  NoGrad no_grad;
  home = value.detach().contiguous().detach();
  if (requires_grad) {
    home.set_requires_grad(true);
    leaf = home.edge().node;
    static_cast<LeafNode&>(*leaf).parameter = this;
  }
}

ParameterBody::ParameterBody(const Shape& wanted, DType type) : shape(wanted), dtype(type) {}

ParameterBody::~ParameterBody() {
  if (leaf) static_cast<LeafNode&>(*leaf).parameter = nullptr;
  if (slabs) slabs->forget(*this);
  drop_slots();
}

Slot& ParameterBody::make_slot(int ordinal, Tensor value) {
  Slot* slot = new Slot;
  slot->value = std::move(value);
  slots_[static_cast<std::size_t>(ordinal)].store(slot, std::memory_order_release);
  return *slot;
}

void ParameterBody::drop_slots() {
  for (auto& entry : slots_) {
    Slot* slot = entry.load(std::memory_order_relaxed);
    if (slot && slot->node) slot->node->leave_slot();
    entry.store(nullptr, std::memory_order_release);
    delete slot;
  }
}

std::string ParameterBody::describe() const {
  return cat(is_buffer ? "buffer '" : "parameter '", name.empty() ? "(not listed)" : name, "' of ", dtype, shape);
}

Tensor ParameterBody::on(Device device) {
  LOCKSTEP_CHECK(home.defined(), "[parameter] expected elements, but ", describe(), " is uninitialised");
  if (home.device() == device) {
    if (Reading* reading = Reading::current()) reading->read(*this, current_stream(device));
    return home;
  }
  Slot* slot = this->slot(ordinal(device));
  if (!slot || !slot->filled.load(std::memory_order_acquire)) {
    std::vector<Device> have{home.device()};
    for (Device other : all_devices())
      if (const Slot* s = this->slot(ordinal(other)); s && s->filled.load(std::memory_order_acquire))
        have.push_back(other);
    throw InvalidArgument(cat("[parameter] expected ", describe(), " to be on ", device, ", but it is on ", have, "; ",
                              name.empty()
                                  ? "list it in the members() of its module, which then can be moved and replicated"
                                  : "move the module or the input, or replicate the module"));
  }
  Stream& stream = current_stream(device);
  Tensor handle = slot->value.detach();
  const bool differentiable = GradMode::enabled() && home.requires_grad();
  if (differentiable || !stream.synchronous()) {
    std::lock_guard lock(slot->mutex);
    if (!stream.synchronous()) {
      LOCKSTEP_EDGE(stream.wait(slot->ready));
      // Once somebody has been told of a failure, work that waits for it would run again, on what was never written.
      if (!slot->arrived.load(std::memory_order_relaxed) && slot->refresh_failed())
        LOCKSTEP_EDGE(wait(slot->ready, Deadline::after(Milliseconds(0))));  // throws it
      if (std::find(slot->readers.begin(), slot->readers.end(), &stream) == slot->readers.end())
        LOCKSTEP_EDGE(slot->readers.push_back(&stream));
    }
    if (differentiable) {
      // One node per slot, so that a backward finds one gradient per replica.
      if (!slot->node) slot->node = Ref<MirrorNode>(new MirrorNode(this, device));
      handle.set_edge({slot->node, 0});
    }
  }
  return handle;
}

void ParameterBody::claim(std::uint64_t call) {
  std::lock_guard lock(claim_mutex_);
  if (claims_ > 0 && claimed_by_ != call)
    throw Error(
        cat("[train] expected one training call at a time, but ", describe(), " is being trained by another thread"));
  claimed_by_ = call;
  ++claims_;
}

void ParameterBody::unclaim() {
  std::lock_guard lock(claim_mutex_);
  --claims_;
}

std::uint64_t next_training_call() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// ---- Parameter

Parameter::Parameter(const Tensor& value, bool requires_grad)
    : body_(std::make_shared<ParameterBody>(value, false, requires_grad)) {}

Buffer::Buffer(const Tensor& value, bool requires_grad)
    : Parameter(std::make_shared<ParameterBody>(value, true, requires_grad)) {}

Parameter Parameter::uninitialized(const Shape& shape, DType dtype) {
  return Parameter(std::make_shared<ParameterBody>(shape, dtype));
}

namespace {
ParameterBody& checked(const std::shared_ptr<ParameterBody>& body) {
  LOCKSTEP_CHECK(body != nullptr,
                 "[parameter] expected a parameter, got an absent one (never set, or its module was moved from)");
  return *body;
}
ParameterBody& initialised(const std::shared_ptr<ParameterBody>& body) {
  LOCKSTEP_CHECK(checked(body).home.defined(), "[parameter] expected elements, but ", body->describe(),
                 " is uninitialised");
  return *body;
}
}  // namespace

const std::string& Parameter::name() const { return checked(body_).name; }
const Shape& Parameter::shape() const { return checked(body_).shape; }
DType Parameter::dtype() const { return checked(body_).dtype; }
Device Parameter::device() const { return initialised(body_).home.device(); }
Tensor Parameter::tensor() const { return initialised(body_).home; }

Tensor Parameter::on(Device device) const {
  if (const Substitution* substitution = thread_context().substitution) [[unlikely]]
    if (const Tensor* tensor = substitution->find(body_.get())) return tensor->to(device);
  return checked(body_).on(device);
}

SparseGradient Parameter::sparse_grad() const { return tensor().sparse_grad(); }
void Parameter::set_sparse_grad(const SparseGradient& grad) const { tensor().set_sparse_grad(grad); }

bool Parameter::requires_grad() const {
  const ParameterBody& body = checked(body_);
  return body.home.defined() && body.home.requires_grad();
}

void Parameter::set_requires_grad(bool wanted) const {
  ParameterBody& body = initialised(body_);
  if (!wanted) {
    body.home.set_edge({});
  } else if (body.leaf) {
    body.home.set_edge({body.leaf, 0});
  } else {
    body.home.set_requires_grad(true);
    body.leaf = body.home.edge().node;
    static_cast<LeafNode&>(*body.leaf).parameter = &body;
  }
}

namespace {
// The elements that a parameter without any is to have.
Tensor first_elements(const ParameterBody& body, const Tensor& value) {
  Tensor fresh = value.to(body.placed.value_or(value.device())).to(body.dtype).clone();
  if (is_floating(body.dtype)) fresh.set_requires_grad(true);
  return fresh;
}

// Of a parameter without elements `value` becomes them.
void assign_one(ParameterBody& body, const Tensor& value) {
  if (body.home.defined()) {
    body.home.copy_(value);
    return;
  }
  body.home = value;
  if (value.requires_grad()) {
    body.leaf = value.edge().node;
    static_cast<LeafNode&>(*body.leaf).parameter = &body;
  }
}
}  // namespace

void Parameter::assign(const Tensor& value) const {
  ParameterBody& body = checked(body_);
  LOCKSTEP_CHECK(value.shape() == body.shape, "[assign] expected a value for ", body.describe(), ", got ",
                 value.describe());
  if (body.gate() && Reading::holds(**body.gate())) {
    const NoGrad no_grad;
    assign_one(body, body.home.defined() ? value.detach() : first_elements(body, value.detach()));
  } else {
    const std::pair<Parameter, Tensor> assignment(*this, value);
    detail::assign_all("assign", {&assignment, 1});
  }
}

void detail::assign_all(const char* op, std::span<const std::pair<Parameter, Tensor>> assignments) {
  const NoGrad no_grad;
  std::vector<ParameterBody*> bodies;
  std::vector<Tensor> values;  // where they come from, so that what is left is a copy
  std::vector<Device> devices;
  for (const auto& [parameter, value] : assignments) {
    ParameterBody& body = *parameter.body();
    const bool first = !body.home.defined();
    bodies.push_back(&body);
    values.push_back(first ? first_elements(body, value.detach()) : value.detach().to(body.dtype).contiguous());
    devices.push_back(first ? values.back().device() : body.home.device());
  }
  if (bodies.empty()) return;
  const Writing writing(op, bodies, devices, Deadline::after(kDefaultTimeout));
  for (std::size_t i = 0; i < bodies.size(); ++i) assign_one(*bodies[i], values[i]);
}

// ---- SubstituteScope

SubstituteScope::SubstituteScope(const std::vector<Parameter>& parameters, const std::vector<Tensor>& tensors)
    : previous_(thread_context().substitution) {
  LOCKSTEP_CHECK(parameters.size() == tensors.size(), "[substitute] expected one tensor for each of ",
                 parameters.size(), " parameters, got ", tensors.size());
  substitution_ = std::make_unique<Substitution>(previous_);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    LOCKSTEP_CHECK(parameters[i].shape() == tensors[i].shape(), "[substitute] expected a tensor for ",
                   parameters[i].body()->describe(), ", got ", tensors[i].describe());
    substitution_->add(parameters[i].body(), tensors[i]);
  }
  thread_context().substitution = substitution_.get();
}

SubstituteScope::~SubstituteScope() { thread_context().substitution = previous_; }

}  // namespace lockstep
