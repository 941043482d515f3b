// How the copies of a module's parameters and buffers on other devices are brought up to date: what has changed, in
// runs, between the same calls for all sets. The bytes go along the devices as a chain, so that no link carries them
// twice: the time is that of one copy and of a piece per further device, instead of a copy per device.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/stream/stream_state.h"
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

// Lets `copies` come after everything enqueued so far that uses these slots.
void SlabSet::await_users(std::span<const int> stale, Device device, const Stream& copies) {
  std::vector<detail::StreamBody*> readers;
  std::vector<std::shared_ptr<SlotRefresh>> earlier;
  std::vector<PendingReads*> elsewhere;
  const auto add = [](auto& list, const auto& each) {
    if (std::find(list.begin(), list.end(), each) == list.end()) list.push_back(each);
  };
  const int at = ordinal(device);
  for (int index : stale) {
    const Entry& entry = entries[static_cast<std::size_t>(index)];
    add(elsewhere, slabs[static_cast<std::size_t>(entry.slab)].values[static_cast<std::size_t>(at)]->pending_reads());
    Slot& slot = *entry.body->slot(at);
    std::lock_guard lock(slot.mutex);
    for (detail::StreamBody* reader : slot.readers) add(readers, reader);
    if (slot.refresh && slot.refresh->pieces() > 0) add(earlier, slot.refresh);
  }
  for (detail::StreamBody* reader : readers) LOCKSTEP_EDGE(copies.wait_for(*reader));
  // A failure that nobody was told of yet is not forgotten with the event.
  for (const auto& refresh : earlier) LOCKSTEP_EDGE(refresh->await(copies, refresh->pieces()));
  for (PendingReads* reads : elsewhere) LOCKSTEP_EDGE(reads->await(copies));  // of the next device of the chain
  for (int index : stale) {
    Slot& slot = *entries[static_cast<std::size_t>(index)].body->slot(at);
    std::lock_guard lock(slot.mutex);
    slot.readers.clear();
    slot.filled.store(false, std::memory_order_relaxed);  // a failed copy leaves it stale
  }
}

// Entries that are neighbours in their slab and all stale.
std::vector<SlabSet::Chain::Run> SlabSet::runs_of(std::span<const int> stale) const {
  std::vector<Chain::Run> runs;
  for (std::size_t s = 0; s < slabs.size(); ++s) {
    const std::vector<int>& order = slabs[s].entries;
    bool inside = false;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const bool wanted = std::binary_search(stale.begin(), stale.end(), order[i]);
      if (wanted && !inside) runs.push_back({s, i, i, {}});
      if (wanted) runs.back().end = i + 1;
      inside = wanted;
    }
  }
  return runs;
}

namespace {

// A part of a run, copied as one.
struct Piece {
  std::size_t run, offset_bytes, bytes;  // the offset is that in the slab
  bool buffers;
  int first;  // the entry that its first byte is of
};

// In the order in which a forward needs them: buffers, which are small and which home is about to write, and then
// parameters as they are listed, whatever slabs they are in.
bool sooner(const Piece& a, const Piece& b) {
  if (a.buffers != b.buffers) return a.buffers;
  return a.first < b.first;
}

// The pieces of a run of slots are as those of a chain of two hops at least: where there is one mirror, the first
// layers need not wait for the last ones either.
std::size_t piece_bytes(std::size_t bytes, std::size_t hops) {
  return detail::chain_piece_bytes(bytes, std::max<std::size_t>(hops, 2));
}

}  // namespace

void SlabSet::refresh(Device device, std::span<const int> stale, Chain& chain, TransferStats& stats) {
  const Stream from = current_stream(home_), to = current_stream(device), copies = detail::copies_of(to);
  const bool at_once = copies.synchronous();
  std::vector<Chain::Run> runs = runs_of(stale);
  std::vector<const Chain::Run*> sent;  // for each run, what the device before was sent; null: it comes from home
  std::vector<Piece> pieces;
  const auto range_of = [&](const Chain::Run& run) {
    const Slab& slab = slabs[run.slab];
    const Entry& first = entries[static_cast<std::size_t>(slab.entries[run.begin])];
    const Entry& last = entries[static_cast<std::size_t>(slab.entries[run.end - 1])];
    return std::pair(first.offset_bytes, last.offset_bytes + last.bytes);
  };
  for (const Chain::Run& run : runs) {
    const Slab& slab = slabs[run.slab];
    const auto [begin, end] = range_of(run);
    const auto same = std::find_if(chain.runs.begin(), chain.runs.end(), [&run](const Chain::Run& each) {
      return each.slab == run.slab && each.begin == run.begin && each.end == run.end;
    });
    // Replicas of other threads may write their buffers by now: those come from home. So does everything where copies
    // are done at once: there is no link to spare, and home is in the cache.
    const bool passed_on = same != chain.runs.end() && !same->pieces.empty() && !slab.buffers && !at_once &&
                           detail::chainable(chain.device, device);
    sent.push_back(passed_on ? &*same : nullptr);
    // In whole where no chain can take it on.
    const bool divided = !at_once && (passed_on || detail::chainable(home_, device));
    const std::size_t most = divided ? piece_bytes(end - begin, chain.hops) : end - begin;
    std::size_t position = run.begin;
    for (std::size_t at = begin; at < end; at += most) {
      const auto next = [&] { return entries[static_cast<std::size_t>(slab.entries[position + 1])].offset_bytes; };
      while (position + 1 < run.end && next() <= at) ++position;
      pieces.push_back({.run = static_cast<std::size_t>(&run - runs.data()),
                        .offset_bytes = at,
                        .bytes = std::min(most, end - at),
                        .buffers = slab.buffers,
                        .first = slab.entries[position]});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), sooner);

  const auto refreshed = std::make_shared<SlotRefresh>();
  await_users(stale, device, copies);
  std::vector<std::uint64_t> versions;  // of home, read before the copies
  for (int index : stale) versions.push_back(entries[static_cast<std::size_t>(index)].body->home.version());
  std::map<Storage*, std::size_t> left;  // the last piece that is read from there
  bool from_home = false;
  try {
    LOCKSTEP_EDGE(copies.wait_for(to));  // which fills new slabs with zeros
    for (const Piece& piece : pieces) {
      Chain::Run& run = runs[piece.run];
      Slab& slab = slabs[run.slab];
      const Chain::Run* const before = sent[piece.run];
      const Device source = before ? chain.device : home_;
      Storage& there = *slab.values[static_cast<std::size_t>(ordinal(source))];
      Storage& here = *slab.values[static_cast<std::size_t>(ordinal(device))];
      const CopyArgs args{.destination = static_cast<std::byte*>(here.data()) + piece.offset_bytes,
                          .destination_device = device,
                          .source = static_cast<std::byte*>(there.data()) + piece.offset_bytes,
                          .source_device = source,
                          .bytes = piece.bytes};
      if (before) {
        // There it may have come in whole.
        const std::size_t k = std::min(run.pieces.size(), before->pieces.size() - 1);
        LOCKSTEP_EDGE(copies.wait(chain.refresh->piece(before->pieces[k])));
        detail::copy_on(copies, args);
      } else if (detail::chainable(home_, device)) {
        if (!std::exchange(from_home, true)) LOCKSTEP_EDGE(copies.wait_for(from));
        detail::copy_on(copies, args);
      } else {
        LOCKSTEP_EDGE(to.wait_for(copies));
        copy_bytes(args, from, to);
        LOCKSTEP_EDGE(copies.wait_for(to));
      }
      if (at_once) continue;
      // Their devices go on meanwhile, and may drop the slabs.
      LOCKSTEP_EDGE(there.record_use(copies));
      LOCKSTEP_EDGE(here.record_use(copies));
      left[&there] = refreshed->pieces();
      run.pieces.push_back(refreshed->pieces());
      refreshed->arrives(copies);
    }
    // Nobody writes the sources before they have been read.
    for (const auto& [source, piece] : left)
      LOCKSTEP_EDGE(source->pending_reads()->add(copies, refreshed->share_piece(piece)));
  } catch (...) {
    detail::settle(copies.backend(), device, copies.handle());
    throw;
  }

  std::vector<std::size_t> needed(entries.size());  // by entry: the first so many pieces
  for (const Chain::Run& run : runs) {
    const Slab& slab = slabs[run.slab];
    const auto [begin, end] = range_of(run);
    ++stats.copies;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      const Entry& entry = entries[static_cast<std::size_t>(slab.entries[i])];
      stats.bytes += entry.bytes;
      if (run.pieces.empty() || entry.bytes == 0) continue;
      const std::size_t most = run.pieces.size() == 1 ? end - begin : piece_bytes(end - begin, chain.hops);
      needed[static_cast<std::size_t>(slab.entries[i])] =
          run.pieces[(entry.offset_bytes + entry.bytes - 1 - begin) / most] + 1;
    }
  }
  for (std::size_t i = 0; i < stale.size(); ++i) {
    Slot& slot = *entries[static_cast<std::size_t>(stale[i])].body->slot(ordinal(device));
    slot.value.mark_changed();  // what graphs saved of the old elements is void
    slot.home_version.store(versions[i], std::memory_order_relaxed);
    slot.own_version.store(slot.value.version(), std::memory_order_relaxed);
    std::lock_guard lock(slot.mutex);
    slot.refresh = refreshed;
    slot.pieces = needed[static_cast<std::size_t>(stale[i])];
    slot.arrived.store(at_once, std::memory_order_relaxed);
    slot.filled.store(true, std::memory_order_release);
  }
  chain.device = device;
  chain.refresh = refreshed;
  chain.runs = std::move(runs);
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
  const detail::KeepDevice turns;
  std::map<SlabSet*, SlabSet::Chain> chains;
  for (const auto& [set, bodies] : by_set) chains[set.get()].hops = devices.size() - 1;
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
    for (const auto& [set, entries] : stale) {
      set->refresh(device, entries, chains[set], stats);
    }
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
