// The copies of one refresh of a slab set, piece by piece to all mirrors that lack it, and what they come after and
// before. The bytes go along the mirrors as a chain, so that no link carries them twice: the time is that of one copy
// and of a piece per further mirror, instead of a copy per mirror.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/tensor/nn/refresh_plan.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {
namespace {

class SlabRefresh {
 public:
  // Without a transport copies do it.
  SlabRefresh(SlabSet& set, std::span<const SlabSet::Mirror> mirrors, std::shared_ptr<ReplicaTransport> transport)
      : set_(set), transport_(std::move(transport)), plan_(set, mirrors) {
    for (const SlabSet::Mirror& mirror : mirrors)
      arriving_.emplace_back(mirror, set.entries.size(), transport_ ? 0 : plan_.lanes());
    versions_.resize(set.entries.size());
    for (const SlabSet::Mirror& mirror : mirrors)
      for (const int index : mirror.stale) versions_[static_cast<std::size_t>(index)] = body(index).home.version();
  }

  void enqueue();
  // The slots have what they lacked, for those who wait for its pieces.
  void publish();
  void count(TransferStats& stats) const;

 private:
  // What a mirror gets.
  struct Arriving {
    // Without lanes of copies it gets all on its current stream.
    Arriving(const SlabSet::Mirror& of, std::size_t entries, std::size_t lane_count)
        : mirror(of), to(current_stream(of.device)), needed(entries) {
      for (std::size_t i = 0; i < lane_count; ++i) lanes.push_back({.copies = detail::lane_copies_of(to, i)});
      if (lanes.empty()) lanes.push_back({.copies = to});
    }

    // Copies on one stream.
    struct OnLane {
      Stream copies;
      std::map<Storage*, std::size_t> read = {};  // the last piece that is read from there
      std::set<Storage*> written = {};
      bool after_home = false;  // comes after what is on home's stream
    };

    const SlabSet::Mirror& mirror;
    Stream to;
    std::vector<OnLane> lanes;
    std::shared_ptr<SlotRefresh> refresh = std::make_shared<SlotRefresh>();
    std::vector<std::size_t> needed;  // by entry: the first so many pieces
    bool begun = false;               // await_users
  };

  ParameterBody& body(int index) const { return *set_.entries[static_cast<std::size_t>(index)].body; }
  Slot& slot(int index, Device device) const { return *body(index).slot(ordinal(device)); }
  void await_users(Arriving& at);
  void copy(const RefreshPlan::Copy& wanted);
  void broadcast();
  void keep_memory(const Arriving& at);

  SlabSet& set_;
  const std::shared_ptr<ReplicaTransport> transport_;
  const RefreshPlan plan_;
  const Stream home_ = current_stream(set_.home());
  std::vector<Arriving> arriving_;
  std::vector<std::uint64_t> versions_;  // of home by entry, read before the copies
};

// Lets a mirror's copies come after everything enqueued so far that uses its slots. Its first copy asks for that: what
// comes before it goes on meanwhile.
void SlabRefresh::await_users(Arriving& at) {
  const Stream& copies = at.lanes.front().copies;
  std::vector<detail::StreamBody*> readers;
  std::vector<std::shared_ptr<SlotRefresh>> earlier;
  std::vector<PendingReads*> elsewhere;
  const auto add = [](auto& list, const auto& each) {
    if (std::find(list.begin(), list.end(), each) == list.end()) list.push_back(each);
  };
  const auto device = static_cast<std::size_t>(ordinal(at.mirror.device));
  for (const int index : at.mirror.stale) {
    const SlabSet::Entry& entry = set_.entries[static_cast<std::size_t>(index)];
    add(elsewhere, set_.slabs[static_cast<std::size_t>(entry.slab)].values[device]->pending_reads());
    Slot& stale = slot(index, at.mirror.device);
    std::lock_guard lock(stale.mutex);
    for (detail::StreamBody* reader : stale.readers) add(readers, reader);
    if (stale.refresh && stale.refresh->pieces() > 0) add(earlier, stale.refresh);
  }
  for (detail::StreamBody* reader : readers) LOCKSTEP_EDGE(copies.wait_for(*reader));
  // A failure that nobody was told of yet is not forgotten with the event.
  for (const auto& refresh : earlier) LOCKSTEP_EDGE(refresh->await(copies, refresh->pieces()));
  for (PendingReads* reads : elsewhere) LOCKSTEP_EDGE(reads->await(copies));  // of the mirror after it
  LOCKSTEP_EDGE(copies.wait_for(at.to));                                      // which fills new slabs with zeros
  for (std::size_t i = 1; i < at.lanes.size(); ++i) LOCKSTEP_EDGE(at.lanes[i].copies.wait_for(copies));
  for (const int index : at.mirror.stale) {
    Slot& stale = slot(index, at.mirror.device);
    std::lock_guard lock(stale.mutex);
    stale.readers.clear();
    stale.filled.store(false, std::memory_order_relaxed);  // a failed copy leaves it stale
  }
}

void SlabRefresh::copy(const RefreshPlan::Copy& wanted) {
  const RefreshPlan::Piece& piece = plan_.piece(wanted);
  const SlabSet::Slab& slab = set_.slabs[piece.slab];
  Arriving& at = arriving_[wanted.to];
  if (!std::exchange(at.begun, true)) await_users(at);
  Arriving::OnLane& lane = at.lanes[wanted.lane];
  const Stream& copies = lane.copies;
  const bool from_home = wanted.from == RefreshPlan::kHome;
  const Device source = from_home ? set_.home() : arriving_[wanted.from].mirror.device, device = at.mirror.device;
  Storage& there = *slab.values[static_cast<std::size_t>(ordinal(source))];
  Storage& here = *slab.values[static_cast<std::size_t>(ordinal(device))];
  const CopyArgs args{.destination = static_cast<std::byte*>(here.data()) + piece.offset_bytes,
                      .destination_device = device,
                      .source = static_cast<std::byte*>(there.data()) + piece.offset_bytes,
                      .source_device = source,
                      .bytes = piece.bytes};
  if (!from_home) {
    LOCKSTEP_EDGE(copies.wait(arriving_[wanted.from].refresh->piece(wanted.after - 1)));
    detail::copy_on(copies, args);
  } else if (detail::chainable(source, device)) {
    if (!std::exchange(lane.after_home, true)) LOCKSTEP_EDGE(copies.wait_for(home_));
    detail::copy_on(copies, args);
  } else {
    copy_bytes(args, home_, copies);
  }
  if (at.mirror.at_once) return;
  lane.read[&there] = at.refresh->pieces();
  lane.written.insert(&here);
  at.refresh->arrives(copies, wanted.lane);
  for (std::size_t place = piece.first; place < piece.end; ++place)
    at.needed[static_cast<std::size_t>(slab.entries[place])] = at.refresh->pieces();
}

// Devices go on while the copies are under way, and may drop the slabs; and nobody writes what has not been read.
void SlabRefresh::keep_memory(const Arriving& at) {
  for (const Arriving::OnLane& lane : at.lanes) {
    for (Storage* here : lane.written) LOCKSTEP_EDGE(here->record_use(lane.copies));
    for (const auto& [there, piece] : lane.read) {
      LOCKSTEP_EDGE(there->record_use(lane.copies));
      LOCKSTEP_EDGE(there->pending_reads()->add(lane.copies, at.refresh->share_piece(piece)));
    }
  }
}

// All mirrors lack the same, which arrives at once.
void SlabRefresh::broadcast() {
  for (Arriving& at : arriving_) await_users(at);
  const std::vector<int>& stale = arriving_.front().mirror.stale;
  std::vector<std::vector<Tensor>> ranges;
  std::vector<Storage*> read;
  for (const SlabSet::Slab& slab : set_.slabs) {
    const auto lacking = [&](int index) { return std::binary_search(stale.begin(), stale.end(), index); };
    const auto entry = [&](auto place) -> const SlabSet::Entry& {
      return set_.entries[static_cast<std::size_t>(*place)];
    };
    for (auto begin = slab.entries.begin(); begin != slab.entries.end();) {
      if (!lacking(*begin)) {
        ++begin;
        continue;
      }
      const auto end = std::find_if_not(begin, slab.entries.end(), lacking);
      const std::size_t from = entry(begin).offset_bytes, to = entry(end - 1).offset_bytes + entry(end - 1).bytes;
      begin = end;
      if (from == to) continue;
      const auto on = [&](Device device) {
        return detail::slab_range(slab.values[static_cast<std::size_t>(ordinal(device))], slab.dtype, from, to - from);
      };
      std::vector<Tensor>& range = ranges.emplace_back();
      for (const Device device : transport_->devices()) range.push_back(on(device));
      read.push_back(slab.values[static_cast<std::size_t>(ordinal(set_.home()))].get());
    }
  }
  if (!ranges.empty()) transport_->broadcast(ranges);
  // Who writes at home on another stream comes after it.
  const auto done = std::make_shared<Event>();
  LOCKSTEP_EDGE(done->record(home_));
  for (Storage* there : read) LOCKSTEP_EDGE(there->pending_reads()->add(home_, done));
  for (Arriving& at : arriving_) {
    at.refresh->arrives(at.to);
    for (const int index : stale) at.needed[static_cast<std::size_t>(index)] = at.refresh->pieces();
  }
}

void SlabRefresh::enqueue() try {
  if (transport_) return broadcast();
  for (const RefreshPlan::Copy& each : plan_.copies()) copy(each);
  for (const Arriving& at : arriving_) keep_memory(at);
} catch (...) {
  for (const Arriving& at : arriving_)
    for (const Arriving::OnLane& lane : at.lanes)
      detail::settle(lane.copies.backend(), lane.copies.device(), lane.copies.handle());
  throw;
}

void SlabRefresh::publish() {
  for (const Arriving& at : arriving_)
    for (const int index : at.mirror.stale) {
      Slot& filled = slot(index, at.mirror.device);
      filled.value.mark_changed();  // what graphs saved of the old elements is void
      filled.home_version.store(versions_[static_cast<std::size_t>(index)], std::memory_order_relaxed);
      filled.own_version.store(filled.value.version(), std::memory_order_relaxed);
      std::lock_guard lock(filled.mutex);
      filled.refresh = at.refresh;
      filled.pieces = at.needed[static_cast<std::size_t>(index)];
      filled.arrived.store(at.mirror.at_once, std::memory_order_relaxed);
      filled.filled.store(true, std::memory_order_release);
    }
}

void SlabRefresh::count(TransferStats& stats) const {
  stats.copies += plan_.runs();
  for (const Arriving& at : arriving_)
    for (const int index : at.mirror.stale) stats.bytes += set_.entries[static_cast<std::size_t>(index)].bytes;
}

// It takes the same to all of its devices.
bool is_for(const ReplicaTransport& transport, Device home, std::span<const SlabSet::Mirror> mirrors) {
  const std::span<const Device> devices = transport.devices();
  if (devices.size() != mirrors.size() + 1 || devices[0] != home) return false;
  for (std::size_t m = 0; m < mirrors.size(); ++m)
    if (mirrors[m].device != devices[m + 1] || mirrors[m].stale != mirrors[0].stale) return false;
  return true;
}

}  // namespace

void SlabSet::refresh(std::span<const Mirror> mirrors, TransferStats& stats) {
  std::shared_ptr<ReplicaTransport> by;
  {
    const std::lock_guard lock(reduce_mutex);
    if (transport && is_for(*transport, home_, mirrors)) by = transport;
  }
  SlabRefresh refresh(*this, mirrors, std::move(by));
  refresh.enqueue();
  refresh.publish();
  refresh.count(stats);
}

}  // namespace lockstep
