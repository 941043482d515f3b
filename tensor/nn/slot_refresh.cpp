#include "lockstep/tensor/nn/slot_refresh.h"

#include <algorithm>
#include <cstdint>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep {

template <class F>
void SlotRefresh::each_lane(std::size_t begin, std::size_t end, F f) const {
  std::uint64_t seen = 0;
  for (std::size_t left = lanes_; end > begin && left > 0;) {
    const Piece& piece = pieces_[--end];
    const std::uint64_t lane = std::uint64_t{1} << piece.lane;
    if (seen & lane) continue;
    seen |= lane;
    --left;
    if (!f(*piece.arrived)) return;
  }
}

void SlotRefresh::arrives(const Stream& copies, std::size_t lane) {
  const bool first =
      std::none_of(pieces_.begin(), pieces_.end(), [lane](const Piece& each) { return each.lane == lane; });
  pieces_.push_back({std::make_shared<Event>(), lane});
  lanes_ += first ? 1 : 0;
  LOCKSTEP_EDGE(pieces_.back().arrived->record(copies));
}

void SlotRefresh::await(const Stream& stream, std::size_t n) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const Waited& each) { return each.stream == &stream.body(); };
  auto waited = std::find_if(waited_.begin(), waited_.end(), same);
  const std::size_t before = waited == waited_.end() ? 0 : waited->pieces;
  if (before >= n) return;
  each_lane(before, n, [&stream](const Event& arrived) {
    LOCKSTEP_EDGE(stream.wait(arrived));
    return true;
  });
  // Another library may end its stream and get the next one under the same handle.
  if (detail::state_of(stream).foreign) return;
  if (waited == waited_.end()) waited = waited_.insert(waited, {&stream.body(), 0});
  waited->pieces = n;
}

bool SlotRefresh::failed(std::size_t n) {
  std::size_t known = done_.load(std::memory_order_acquire);
  auto progress = Event::Progress::done;
  each_lane(known, n, [&progress](const Event& arrived) {
    const Event::Progress found = arrived.progress();
    if (found != Event::Progress::done) progress = found;
    return found != Event::Progress::failed;
  });
  if (progress != Event::Progress::done) return progress == Event::Progress::failed;
  while (known < n && !done_.compare_exchange_weak(known, n, std::memory_order_acq_rel)) {
  }
  return false;
}

void SlotRefresh::throw_failure(std::size_t n) const {
  each_lane(0, n, [](const Event& arrived) {
    if (arrived.progress() == Event::Progress::failed) LOCKSTEP_EDGE(wait(arrived, Deadline::after(Milliseconds(0))));
    return true;
  });
}

}  // namespace lockstep
