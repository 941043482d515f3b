#include "lockstep/tensor/nn/parameter_body.h"

#include <algorithm>
#include <new>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

// ---- SlotMirror

SlotMirror::SlotMirror(ParameterBody* body, Device device) : MirrorNode(body->leaf), body_(body), device_(device) {
  LOCKSTEP_EDGE(stream = &default_stream(device).body());
}

LeafOwner* SlotMirror::owner() const { return body_; }

int SlotMirror::replica() const {
  const Slot* slot = body_ ? body_->slot(ordinal(device_)) : nullptr;
  return slot ? slot->replica.load(std::memory_order_relaxed) : last_replica_;
}

void SlotMirror::leave_slot() {
  last_replica_ = replica();
  body_ = nullptr;
}

// ---- Slot

bool Slot::refresh_failed() {
  if (arrived.load(std::memory_order_relaxed) || !refresh) return false;
  if (pieces > 0) {
    if (refresh->failed(pieces)) return true;
    if (!refresh->known(pieces)) return false;
  }
  arrived.store(true, std::memory_order_release);
  return false;
}

// ---- SlotTable

Slot* SlotTable::find(int ordinal) const {
  const Places* const places = places_.load(std::memory_order_acquire);
  return places ? find_in(*places, ordinal) : nullptr;
}

Slot* SlotTable::find_in(const Places& places, int ordinal) {
  for (std::size_t i = 0; i < places.count; ++i) {
    const std::size_t at = (static_cast<std::size_t>(ordinal) + i) & (places.count - 1);
    Slot* const slot = places.slots[at].load(std::memory_order_acquire);
    if (!slot || slot->ordinal == ordinal) return slot;
  }
  return nullptr;
}

void SlotTable::put(Places& places, Slot* slot) {
  auto at = static_cast<std::size_t>(slot->ordinal);
  while (places.slots[at & (places.count - 1)].load(std::memory_order_relaxed)) ++at;
  places.slots[at & (places.count - 1)].store(slot, std::memory_order_release);
}

Slot& SlotTable::add(int ordinal, Tensor value) {
  auto slot = std::make_unique<Slot>(ordinal, std::move(value));
  Places* const places = places_.load(std::memory_order_relaxed);
  const std::size_t count = places ? places->count : 0;
  if (used_ < count) {
    put(*places, slot.get());
  } else {
    constexpr std::size_t kFirst = 2;
    auto larger = std::make_unique<Places>();
    larger->count = count > 0 ? 2 * count : kFirst;
    larger->slots.reset(new std::atomic<Slot*>[larger->count]());
    for (std::size_t i = 0; i < count; ++i) put(*larger, places->slots[i].load(std::memory_order_relaxed));
    put(*larger, slot.get());
    larger->smaller.reset(places);
    places_.store(larger.release(), std::memory_order_release);
  }
  ++used_;
  return *slot.release();
}

void SlotTable::clear() {
  const std::unique_ptr<Places> places(places_.exchange(nullptr, std::memory_order_acq_rel));
  used_ = 0;
  for (std::size_t i = 0; places && i < places->count; ++i) {
    const std::unique_ptr<Slot> slot(places->slots[i].load(std::memory_order_relaxed));
    if (!slot) continue;
    if (slot->node) slot->node->leave_slot();
    try {  // the allocator knows of the stream alone on which the slot was made
      for (detail::StreamBody* reader : slot->readers) LOCKSTEP_EDGE(slot->value.storage()->record_use(*reader));
    } catch (const std::bad_alloc&) {
    }
  }
}

// ---- ParameterBody

ParameterBody::ParameterBody(const Tensor& value, bool buffer, bool requires_grad)
    : shape(value.shape()), dtype(value.dtype()), is_buffer(buffer) {
  LOCKSTEP_CHECK(value.is_leaf(), "[parameter] expected a value outside any graph, got ", value.describe(),
                 "; detach() it first");
  NoGrad no_grad;
  home = value.detach().contiguous(value.memory_format()).detach();
  if (requires_grad) {
    home.set_requires_grad(true);
    set_leaf(home.edge().node);
  }
}

ParameterBody::ParameterBody(const Shape& wanted, DType type) : shape(wanted), dtype(type) {}

ParameterBody::~ParameterBody() {
  if (leaf) static_cast<LeafNode&>(*leaf).set_owner(nullptr);
  if (slabs) slabs->forget(*this);
  drop_slots();
}

void ParameterBody::drop_slots() { slots_.clear(); }

void ParameterBody::set_leaf(Ref<Node> node) {
  leaf = std::move(node);
  static_cast<LeafNode&>(*leaf).set_owner(this);
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
  const Stream stream = current_stream(device);
  Tensor handle = slot->value.detach();
  const bool differentiable = GradMode::enabled() && home.requires_grad();
  if (differentiable || !stream.synchronous()) {
    std::lock_guard lock(slot->mutex);
    if (!stream.synchronous()) {
      const bool reads = std::find(slot->readers.begin(), slot->readers.end(), &stream.body()) != slot->readers.end();
      if (!reads || detail::state_of(stream).foreign) LOCKSTEP_EDGE(slot->refresh->await(stream, slot->pieces));
      // Once somebody has been told of a failure, work that waits for it would run again, on what was never written.
      // A device that does not recover runs nothing any more.
      if (!slot->arrived.load(std::memory_order_relaxed) && stream.backend().recovers() && slot->refresh_failed())
        slot->refresh->throw_failure(slot->pieces);
      if (!reads) LOCKSTEP_EDGE(slot->readers.push_back(&stream.body()));
    }
    if (differentiable) {
      // One node per slot, so that a backward finds one gradient per replica.
      if (!slot->node) slot->node = Ref<SlotMirror>(new SlotMirror(this, device));
      handle.set_edge({slot->node, 0});
    }
  }
  return handle;
}

std::shared_ptr<LeafOwner> ParameterBody::hold() {
  std::shared_ptr<ParameterBody> held = weak_from_this().lock();
  LOCKSTEP_CHECK(
      !held || listed, "[backward] ", describe(),
      " takes part in the graph, but no module's members() lists it; where it came into a module that had been "
      "called before, ask that for named_parameters() once");
  return held;
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

bool ParameterBody::begin_backward(std::uint64_t call, const void* backward) {
  claim(call);
  std::lock_guard lock(claim_mutex_);
  if (backward_ && backward_ != backward) return false;
  backward_ = backward;
  ++begins_;
  return true;
}

void ParameterBody::end_backward(const void* backward) {
  unclaim();
  std::lock_guard lock(claim_mutex_);
  if (backward_ == backward && --begins_ == 0) backward_ = nullptr;
}

}  // namespace lockstep
