#include "lockstep/tensor/nn/module_slots.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_set>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {
namespace {

// The sets of a module's bodies, each once: nearly always one.
template <class F>
void for_each_set(const ModuleSlots& slots, F&& f) {
  std::array<SlabSet*, 8> first;
  std::size_t count = 0;
  std::unordered_set<const SlabSet*> more;
  const SlabSet* last = nullptr;
  for (const auto* list : {&slots.parameters(), &slots.buffers()})
    for (const Parameter& member : *list) {
      SlabSet* set = member.body()->slabs.get();
      if (!set || set == last) continue;
      last = set;
      if (std::find(first.begin(), first.begin() + count, set) != first.begin() + count) continue;
      if (count < first.size())
        first[count++] = set;
      else if (!more.insert(set).second)
        continue;
      f(*set);
    }
}

}  // namespace

ModuleSlots::ModuleSlots(const ModuleBase& module) : parameters_(module.parameters()), buffers_(module.buffers()) {
  std::vector<ParameterBody*> bodies;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) bodies.push_back(member.body());
  detail::share_gate(bodies);
  std::unordered_set<const ReadGate*> known;
  for (const ParameterBody* body : bodies)
    if (known.insert(body->gate()->get()).second) gates_.push_back(*body->gate());
}

void ModuleSlots::check_placement(Device home) const {
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) {
      const ParameterBody& body = *member.body();
      LOCKSTEP_CHECK(body.home.defined(), "[replicate] expected elements, but ", body.describe(), " is uninitialised");
      LOCKSTEP_CHECK(body.home.device() == home, "[replicate] module must have its parameters and buffers on device ",
                     home, " (devices[0]) but found '", body.name, "' on device ", body.home.device());
    }
}

bool ModuleSlots::form_slabs() const {
  Device home;
  bool first = true;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) {
      const ParameterBody& body = *member.body();
      if (!body.home.defined() || (!first && body.home.device() != home)) return false;
      home = body.home.device();
      first = false;
    }
  NoGrad no_grad;
  // One set for all bodies that have none yet, and for those whose home was given other memory.
  static std::mutex& placing = *new std::mutex;
  std::lock_guard lock(placing);
  std::vector<ParameterBody*> homeless;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) {
      ParameterBody* body = member.body();
      if (body->slabs &&
          body->home.storage() != body->slabs->entries[static_cast<std::size_t>(body->slab_entry)].home) {
        detail::leave_slabs(*body);
        body->drop_slots();
      }
      if (!body->slabs) homeless.push_back(body);
    }
  SlabSet::place(homeless);
  return true;
}

TransferStats ModuleSlots::reduced() const {
  TransferStats total;
  for_each_set(*this, [&](SlabSet& set) {
    std::lock_guard lock(set.reduce_mutex);
    total.bytes += set.reduced.bytes;
    total.copies += set.reduced.copies;
    total.nanoseconds += set.reduced.nanoseconds;
  });
  return total;
}

void ModuleSlots::read(Reading& reading) const {
  for (const std::shared_ptr<ReadGate>& gate : gates_) reading.enter(gate);
}

ModuleSlots::ReadLease::ReadLease(const ModuleSlots& slots, Device device) : slots_(slots), device_(device) {
  for_each_set(slots, [&](SlabSet& set) {
    if (set.home() != device) reading_.enter({set.shared_from_this(), &set.gate(device)});
  });
}

ModuleSlots::ReadLease::~ReadLease() {
  const auto at = static_cast<std::size_t>(ordinal(device_));
  try {
    for_each_set(slots_, [&](SlabSet& set) {
      for (const SlabSet::Slab& slab : set.slabs)
        if (PendingReads* reads = slab.reads[at].load(std::memory_order_acquire))
          LOCKSTEP_EDGE(reads->await(current_stream(device_)));
    });
  } catch (...) {
    // Whoever writes there next waits, and is told.
  }
}

ModuleSlots::TrainingClaim::TrainingClaim(const ModuleSlots& slots)
    : slots_(slots), previous_call_(thread_context().training_call) {
  if (previous_call_ == 0) thread_context().training_call = next_training_call();
  std::size_t claimed = 0;
  try {
    for (; claimed < slots_.parameters_.size(); ++claimed)
      slots_.parameters_[claimed].body()->claim(thread_context().training_call);
  } catch (...) {
    while (claimed > 0) slots_.parameters_[--claimed].body()->unclaim();
    thread_context().training_call = previous_call_;
    throw;
  }
}

ModuleSlots::TrainingClaim::~TrainingClaim() {
  for (const Parameter& parameter : slots_.parameters_) parameter.body()->unclaim();
  thread_context().training_call = previous_call_;
}

}  // namespace lockstep
