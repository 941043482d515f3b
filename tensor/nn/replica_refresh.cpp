// How the copies of a module's parameters and buffers on other devices are brought up to date: what has changed, in
// runs, between the same calls for all sets.
#include <algorithm>
#include <cstring>
#include <map>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {
namespace {

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

}  // namespace lockstep
