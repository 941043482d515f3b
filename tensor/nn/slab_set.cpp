#include "lockstep/tensor/nn/slab_set.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/runtime/threads.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

namespace {
constexpr std::size_t kAlignment = 256;  // bytes between the starts of entries: no two share a cache line or sector

bool verify_replicas() {
  static const bool enabled = detail::environment_flag("LOCKSTEP_VERIFY_REPLICAS");
  return enabled;
}

bool is_stale(const ParameterBody& body, Slot& slot) {
  if (!slot.filled.load(std::memory_order_acquire) ||
      slot.home_version.load(std::memory_order_relaxed) != body.home.version() ||
      slot.own_version.load(std::memory_order_relaxed) != slot.value.version())
    return true;
  if (slot.arrived.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(slot.mutex);
  return slot.refresh_failed();
}
}  // namespace

// ---- layout

namespace detail {

Tensor slab_range(const Ref<Storage>& slab, DType dtype, std::size_t offset_bytes, std::size_t bytes) {
  const auto count = static_cast<std::int64_t>(bytes / size_of(dtype));
  return Tensor::over(Storage::slice(slab, offset_bytes, bytes), dtype, {count}, {1});
}

Ref<Storage> zeroed_slab(Device device, DType dtype, std::size_t bytes) {
  Ref<Storage> slab = Storage::allocate(device, bytes);
  slab_range(slab, dtype, 0, bytes).fill_(0);
  return slab;
}

void leave_slabs(ParameterBody& body) {
  if (const std::shared_ptr<SlabSet> set = body.slabs) {
    set->forget(body);
    body.slabs = nullptr;
    body.slab_entry = -1;
  }
}

}  // namespace detail

void SlabSet::place(std::span<ParameterBody* const> bodies) {
  if (bodies.empty()) return;
  NoGrad no_grad;
  const std::shared_ptr<SlabSet> set(new SlabSet(bodies.front()->home.device()));
  for (ParameterBody* body : bodies) {
    auto slab = std::find_if(set->slabs.begin(), set->slabs.end(), [&](const Slab& s) {
      return s.dtype == body->dtype && s.buffers == body->is_buffer && s.sparse == body->sparse;
    });
    if (slab == set->slabs.end())
      slab = set->slabs.insert(slab, Slab{body->dtype, body->is_buffer, body->sparse, 0, {}, {}, {}, {}});
    slab->entries.push_back(static_cast<int>(set->entries.size()));
    set->entries.push_back(
        {body, static_cast<int>(slab - set->slabs.begin()), slab->bytes, body->home.bytes(), {}, {}});
    slab->bytes += (body->home.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  const int home = ordinal(set->home_);
  for (Slab& slab : set->slabs) slab.values[home] = detail::zeroed_slab(set->home_, slab.dtype, slab.bytes);
  // All memory is there: from here on nothing fails half way.
  for (std::size_t i = 0; i < set->entries.size(); ++i) {
    Entry& entry = set->entries[i];
    ParameterBody& body = *entry.body;
    entry.home =
        Storage::slice(set->slabs[static_cast<std::size_t>(entry.slab)].values[home], entry.offset_bytes, entry.bytes);
    Tensor::over(entry.home, body.dtype, body.shape, contiguous_strides(body.shape)).copy_(body.home.detach());
    entry.home->set_version(body.home.version());  // what graphs have saved stays valid
    body.home.set_storage(entry.home, 0);
    body.slabs = set;
    body.slab_entry = static_cast<int>(i);
  }
}

void SlabSet::forget(ParameterBody& body) {
  std::unique_lock lock(mutex, std::defer_lock), reduce_lock(reduce_mutex, std::defer_lock);
  if (detail::process_ends()) {
    if (std::try_lock(lock, reduce_lock) != -1) return;  // who holds it rests for ever, and never looks at it
  } else {
    lock.lock();
    reduce_lock.lock();
  }
  Entry& entry = entries[static_cast<std::size_t>(body.slab_entry)];
  entry.body = nullptr;
  entry.home.reset();
  entry.grad.reset();
}

// ---- refreshing

Slot& SlabSet::slot_for(Entry& entry, Device device) {
  const int at = ordinal(device);
  if (Slot* slot = entry.body->slot(at)) return *slot;
  Slab& slab = slabs[static_cast<std::size_t>(entry.slab)];
  if (!slab.values[at]) slab.values[at] = detail::zeroed_slab(device, slab.dtype, slab.bytes);
  return entry.body->make_slot(
      at, Tensor::over(Storage::slice(slab.values[at], entry.offset_bytes, entry.bytes), entry.body->dtype,
                       entry.body->shape, contiguous_strides(entry.body->shape)));
}

std::vector<int> SlabSet::stale(std::span<ParameterBody* const> bodies, Device device, int replica) {
  std::vector<int> found;
  for (ParameterBody* body : bodies) {
    Slot& slot = slot_for(entries[static_cast<std::size_t>(body->slab_entry)], device);
    slot.replica.store(replica, std::memory_order_relaxed);
    if (is_stale(*body, slot)) found.push_back(body->slab_entry);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void SlabSet::refresh(Device device, std::span<const int> stale, TransferStats& stats) {
  const int home = ordinal(home_), at = ordinal(device);
  const Stream from = current_stream(home_);
  const Stream to = current_stream(device);
  // After everything enqueued so far that reads these slots.
  for (int index : stale) {
    Slot& slot = *entries[static_cast<std::size_t>(index)].body->slot(at);
    std::lock_guard lock(slot.mutex);
    for (detail::StreamBody* reader : slot.readers) LOCKSTEP_EDGE(to.wait_for(*reader));
    slot.readers.clear();
    LOCKSTEP_EDGE(to.wait(slot.ready));  // a failure that nobody was told of yet is not forgotten with the event
    slot.filled.store(false, std::memory_order_relaxed);  // a failed copy leaves it stale
  }
  for (std::size_t s = 0; s < slabs.size(); ++s) {
    const Slab& slab = slabs[s];
    // Runs of entries that are neighbours in the slab and all stale.
    for (std::size_t i = 0; i < slab.entries.size();) {
      if (!std::binary_search(stale.begin(), stale.end(), slab.entries[i])) {
        ++i;
        continue;
      }
      std::size_t end = i;
      std::vector<std::pair<Slot*, std::uint64_t>> refreshed;  // with the home version, read before the copy
      std::size_t payload = 0;
      for (; end < slab.entries.size() && std::binary_search(stale.begin(), stale.end(), slab.entries[end]); ++end) {
        const Entry& entry = entries[static_cast<std::size_t>(slab.entries[end])];
        refreshed.emplace_back(entry.body->slot(at), entry.body->home.version());
        payload += entry.bytes;
      }
      const Entry& first = entries[static_cast<std::size_t>(slab.entries[i])];
      const Entry& last = entries[static_cast<std::size_t>(slab.entries[end - 1])];
      const std::size_t bytes = last.offset_bytes + last.bytes - first.offset_bytes;
      if (bytes > 0) {
        copy_bytes({static_cast<std::byte*>(slab.values[at]->data()) + first.offset_bytes, device,
                    static_cast<std::byte*>(slab.values[home]->data()) + first.offset_bytes, home_, bytes},
                   from, to);
        stats.bytes += payload;
        ++stats.copies;
      }
      for (auto& [slot, version] : refreshed) {
        slot->value.mark_changed();  // what graphs saved of the old elements is void
        slot->home_version.store(version, std::memory_order_relaxed);
        slot->own_version.store(slot->value.version(), std::memory_order_relaxed);
        std::lock_guard lock(slot->mutex);
        LOCKSTEP_EDGE(slot->ready.record(to));
        slot->arrived.store(to.synchronous(), std::memory_order_relaxed);
        slot->filled.store(true, std::memory_order_release);
      }
      i = end;
    }
  }
}

// ---- ModuleSlots

ModuleSlots::ModuleSlots(const ModuleBase& module) : parameters_(module.parameters()), buffers_(module.buffers()) {
  std::vector<ParameterBody*> bodies;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) bodies.push_back(member.body());
  detail::share_gate(bodies);
  for (const ParameterBody* body : bodies)
    if (std::find(gates_.begin(), gates_.end(), *body->gate()) == gates_.end()) gates_.push_back(*body->gate());
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

namespace {
bool up_to_date(const Parameter& member, std::span<const Device> devices) {
  const ParameterBody& body = *member.body();
  if (!body.slabs || body.home.storage() != body.slabs->entries[static_cast<std::size_t>(body.slab_entry)].home)
    return false;
  for (std::size_t d = 1; d < devices.size(); ++d) {
    Slot* slot = body.slot(ordinal(devices[d]));
    if (!slot || slot->replica.load(std::memory_order_relaxed) != static_cast<int>(d) || is_stale(body, *slot))
      return false;
  }
  return true;
}

void verify(const Parameter& member, std::span<const Device> devices) {
  const ParameterBody& body = *member.body();
  const Tensor expected = body.home.detach().to(Device::cpu());
  for (std::size_t d = 1; d < devices.size(); ++d) {
    const Tensor found = member.body()->on(devices[d]).detach().to(Device::cpu());  // whatever stands in for it
    if (std::memcmp(expected.data(), found.data(), expected.bytes()) != 0)
      throw Error(cat("[replicate] ", body.describe(), " differs on ", devices[d], " from its home ", devices[0],
                      " although neither was marked as changed; call mark_changed() after writing to it"));
  }
}
}  // namespace

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

// The slots on one device are replaced between the same calls, whatever sets they are of.
void ModuleSlots::refresh_slots(std::span<const Device> devices, Deadline deadline, TransferStats& stats) const {
  Reading reading;                                                         // of home
  std::map<std::shared_ptr<SlabSet>, std::vector<ParameterBody*>> by_set;  // in one order for all threads
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) by_set[member.body()->slabs].push_back(member.body());
  read(reading);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& [set, bodies] : by_set) locks.emplace_back(set->mutex);
  for (std::size_t d = 1; d < devices.size(); ++d) {
    const Device device = devices[d];
    std::vector<std::pair<SlabSet*, std::vector<int>>> stale;
    std::vector<ReadGate*> gates;
    for (const auto& [set, bodies] : by_set) {
      if (set->home() == device) continue;
      std::vector<int> entries = set->stale(bodies, device, static_cast<int>(d));
      if (entries.empty()) continue;
      gates.push_back(&set->gate(device));
      stale.emplace_back(set.get(), std::move(entries));
      // Stream by stream: a gate is asked once for each.
      for (detail::StreamBody* stream : {&current_stream(devices[0]).body(), &current_stream(device).body()})
        for (const ParameterBody* body : bodies) reading.read(*body, *stream);
    }
    if (gates.empty()) continue;
    if (!ReadGate::close(gates, deadline)) {
      int readers = 0;
      for (const ReadGate* gate : gates) readers += gate->readers();
      throw TimeoutError(cat("[replicate] expected the readers of the replica on ", device,
                             " to finish before it is refreshed; at the deadline ", readers, " still read it"));
    }
    struct Open {
      std::span<ReadGate* const> gates;
      ~Open() { ReadGate::open(gates); }
    } const open{gates};
    for (const auto& [set, entries] : stale) set->refresh(device, entries, stats);
  }
}

TransferStats ModuleSlots::refresh(std::span<const Device> devices, Milliseconds timeout) const {
  TransferStats stats;
  if (devices.size() < 2) return stats;
  const auto begin = Clock::now();
  bool fresh = true;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) fresh = fresh && up_to_date(member, devices);
  if (!fresh) {
    if (DeviceThread::current())
      throw Error("[replicate] expected a call from outside of replicas, got one from the thread of " +
                  to_string(DeviceThread::current()->device()));
    NoGrad no_grad;
    form_slabs();
    refresh_slots(devices, Deadline::after(timeout), stats);
  }
  if (verify_replicas())
    for (const auto* list : {&parameters_, &buffers_})
      for (const Parameter& member : *list) verify(member, devices);
  stats.nanoseconds = static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  return stats;
}

namespace {
// The sets of a module's bodies, each once: nearly always one.
template <class F>
void for_each_set(const ModuleSlots& slots, F&& f) {
  std::array<SlabSet*, 8> first;
  std::size_t count = 0;
  std::vector<SlabSet*> more;
  const SlabSet* last = nullptr;
  for (const auto* list : {&slots.parameters(), &slots.buffers()})
    for (const Parameter& member : *list) {
      SlabSet* set = member.body()->slabs.get();
      if (!set || set == last) continue;
      last = set;
      if (std::find(first.begin(), first.begin() + count, set) != first.begin() + count ||
          std::find(more.begin(), more.end(), set) != more.end())
        continue;
      if (count < first.size())
        first[count++] = set;
      else
        more.push_back(set);
      f(*set);
    }
}
}  // namespace

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

ModuleSlots::ReadLease::ReadLease(const ModuleSlots& slots, Device device) {
  for_each_set(slots, [&](SlabSet& set) {
    if (set.home() != device) reading_.enter({set.shared_from_this(), &set.gate(device)});
  });
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
