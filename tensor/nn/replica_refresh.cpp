// When the copies of a module's parameters and buffers on other devices are brought up to date: when something has
// changed, and between the same calls for all sets.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/keep_device.h"
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

bool up_to_date(const Parameter& member, std::span<const Device> devices, const ReplicaTransport* transport) {
  const ParameterBody& body = *member.body();
  if (!body.slabs || body.slabs->transport_in_use.load(std::memory_order_relaxed) != transport ||
      body.slabs->in_doubt() ||
      body.home.storage() != body.slabs->entries[static_cast<std::size_t>(body.slab_entry)].home)
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

SlabSet::Mirror SlabSet::mirror(std::span<ParameterBody* const> bodies, Device device, int replica) {
  Mirror found{.device = device, .stale = {}, .at_once = current_stream(device).synchronous()};
  for (ParameterBody* body : bodies) {
    Slot& slot = slot_for(entries[static_cast<std::size_t>(body->slab_entry)], device);
    slot.replica.store(replica, std::memory_order_relaxed);
    if (is_stale(*body, slot)) found.stale.push_back(body->slab_entry);
  }
  std::sort(found.stale.begin(), found.stale.end());
  return found;
}

bool SlabSet::in_doubt() {
  if (!transport_in_use.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(reduce_mutex);
  return transport && transport->failures() != transport_failures;
}

void SlabSet::forget_mirrors() {
  const std::lock_guard lock(mutex);
  {
    const std::lock_guard reduce_lock(reduce_mutex);
    if (transport) transport_failures = transport->failures();
  }
  for (const Entry& entry : entries) {
    if (!entry.body) continue;
    for (std::size_t at = 0; at < all_devices().size(); ++at)
      if (Slot* const slot = entry.body->slot(static_cast<int>(at)))
        slot->filled.store(false, std::memory_order_relaxed);
  }
}

namespace {

// What one device lacks, of all sets. Its slots are replaced between the same calls, whatever sets they are of.
struct StaleDevice {
  Device device;
  std::vector<std::pair<SlabSet*, SlabSet::Mirror>> mirrors;
  std::vector<ReadGate*> gates;
};

// Closes the gates of those devices that nobody reads at the moment, or else, by the deadline, those of the first one.
// They are taken out of `waiting`. A device that is still read keeps no call from reading the others meanwhile: calls
// whose replicas wait for each other come to their end.
std::vector<StaleDevice> close_gates(std::vector<StaleDevice>& waiting, Deadline deadline) {
  std::vector<StaleDevice> closed, busy;
  closed.reserve(waiting.size());  // a gate that is closed is in the list: nothing fails in between
  busy.reserve(waiting.size());
  for (StaleDevice& each : waiting) (ReadGate::try_close(each.gates) ? closed : busy).push_back(std::move(each));
  waiting = std::move(busy);
  if (!closed.empty()) return closed;
  StaleDevice& first = waiting.front();
  if (!ReadGate::close(first.gates, deadline)) {
    int readers = 0;
    for (const ReadGate* gate : first.gates) readers += gate->readers();
    throw TimeoutError(cat("[replicate] expected the readers of the replica on ", first.device,
                           " to finish before it is refreshed; at the deadline ", readers, " still read it"));
  }
  closed.push_back(std::move(first));
  waiting.erase(waiting.begin());
  return closed;
}

}  // namespace

void ModuleSlots::refresh_slots(std::span<const Device> devices, Deadline deadline, TransferStats& stats) const {
  Reading reading;                                                         // of home
  std::map<std::shared_ptr<SlabSet>, std::vector<ParameterBody*>> by_set;  // in one order for all threads
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) by_set[member.body()->slabs].push_back(member.body());
  read(reading);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& [set, bodies] : by_set) locks.emplace_back(set->mutex);
  const detail::KeepDevice turns;
  std::vector<StaleDevice> waiting;
  for (std::size_t d = 1; d < devices.size(); ++d) {
    StaleDevice here{.device = devices[d], .mirrors = {}, .gates = {}};
    for (const auto& [set, bodies] : by_set) {
      if (set->home() == here.device) continue;
      SlabSet::Mirror mirror = set->mirror(bodies, here.device, static_cast<int>(d));
      if (mirror.stale.empty()) continue;
      here.gates.push_back(&set->gate(here.device));
      here.mirrors.emplace_back(set.get(), std::move(mirror));
      // Stream by stream: a gate is asked once for each.
      for (detail::StreamBody* stream : {&current_stream(devices[0]).body(), &current_stream(here.device).body()})
        for (const ParameterBody* body : bodies) reading.read(*body, *stream);
    }
    if (!here.gates.empty()) waiting.push_back(std::move(here));
  }
  while (!waiting.empty()) {
    struct Closed {
      std::vector<StaleDevice> devices;
      ~Closed() {
        for (const StaleDevice& each : devices) ReadGate::open(each.gates);
      }
    } const closed{close_gates(waiting, deadline)};
    for (const auto& [set, bodies] : by_set) {
      std::vector<SlabSet::Mirror> mirrors;
      for (const StaleDevice& each : closed.devices)
        for (const auto& [of, mirror] : each.mirrors)
          if (of == set.get()) mirrors.push_back(mirror);
      if (!mirrors.empty()) set->refresh(mirrors, stats);
    }
  }
}

void ModuleSlots::go_by(const std::shared_ptr<ReplicaTransport>& transport) const {
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) {
      SlabSet& set = *member.body()->slabs;
      if (set.in_doubt()) set.forget_mirrors();
      if (set.transport_in_use.load(std::memory_order_relaxed) == transport.get()) continue;
      const std::lock_guard lock(set.reduce_mutex);
      set.transport = transport;
      set.transport_failures = transport ? transport->failures() : 0;
      set.transport_in_use.store(transport.get(), std::memory_order_relaxed);
    }
}

TransferStats ModuleSlots::refresh(std::span<const Device> devices, Milliseconds timeout,
                                   const std::shared_ptr<ReplicaTransport>& transport) const {
  TransferStats stats;
  if (devices.size() < 2) return stats;
  const auto begin = Clock::now();
  bool fresh = true;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Parameter& member : *list) fresh = fresh && up_to_date(member, devices, transport.get());
  if (!fresh) {
    if (DeviceThread::current())
      throw Error("[replicate] expected a call from outside of replicas, got one from the thread of " +
                  to_string(DeviceThread::current()->device()));
    NoGrad no_grad;
    form_slabs();
    go_by(transport);
    refresh_slots(devices, Deadline::after(timeout), stats);
  }
  if (verify_replicas())
    for (const auto* list : {&parameters_, &buffers_})
      for (const Parameter& member : *list) verify(member, devices);
  stats.nanoseconds = static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  return stats;
}

}  // namespace lockstep
