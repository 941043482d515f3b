#include "lockstep/tensor/nn/slot_refresh.h"

#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep {

void SlotRefresh::arrives(const Stream& copies) {
  arrived_.push_back(std::make_shared<Event>());
  LOCKSTEP_EDGE(arrived_.back()->record(copies));
}

void SlotRefresh::await(const Stream& stream, std::size_t n) {
  if (n == 0) return;
  const std::lock_guard lock(mutex_);
  const auto same = [&](const Waited& each) { return each.stream == &stream.body(); };
  auto waited = std::find_if(waited_.begin(), waited_.end(), same);
  if (waited != waited_.end() && waited->pieces >= n) return;
  LOCKSTEP_EDGE(stream.wait(*arrived_[n - 1]));
  // Another library may end its stream and get the next one under the same handle.
  if (detail::state_of(stream).foreign) return;
  if (waited == waited_.end()) waited = waited_.insert(waited, {&stream.body(), 0});
  waited->pieces = n;
}

bool SlotRefresh::failed(std::size_t n) {
  if (done_.load(std::memory_order_acquire) >= n) return false;
  const Event::Progress progress = arrived_[n - 1]->progress();
  if (progress != Event::Progress::done) return progress == Event::Progress::failed;
  std::size_t known = done_.load(std::memory_order_relaxed);
  while (known < n && !done_.compare_exchange_weak(known, n, std::memory_order_acq_rel)) {
  }
  return false;
}

}  // namespace lockstep
