#include "lockstep/runtime/stream/stream_pool.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/per_device.h"

namespace lockstep::detail {
namespace {

bool idle(StreamState& stream) {
  try {
    StreamBody* const copies = stream.copies.load(std::memory_order_acquire);
    return Stream(stream).query() && (!copies || Stream(*copies).query());
  } catch (const std::exception& error) {
    log(LogLevel::warning, cat("[Stream] a stream was given up with an error that nobody waited for: ", error.what()));
    return false;
  }
}

}  // namespace

StreamPool& StreamPool::of(Device device) {
  static constinit PerDevice<StreamPool> pools;
  return pools[device];
}

StreamState* StreamPool::take() {
  std::vector<StreamState*> busy;
  StreamState* found = nullptr;
  while (StreamState* candidate = found ? nullptr : pop()) {
    if (idle(*candidate))
      found = candidate;
    else
      busy.push_back(candidate);
  }
  if (!busy.empty()) {
    std::lock_guard lock(mutex_);
    free_.insert(free_.begin(), busy.begin(), busy.end());
  }
  return found;
}

StreamState* StreamPool::pop() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  StreamState* stream = free_.back();
  free_.pop_back();
  return stream;
}

// To the order checker a stream that comes back would order strangers' work, depending on who came first: unless who
// takes it knows of all that happened on it. A few are looked at, the last ones first. Not of GPUs, whose streams still
// know whom they have waited for.
StreamState* StreamPool::take_retired() {
  constexpr std::size_t kLooks = 8;
  std::unique_lock lock(mutex_);
  const auto looks = static_cast<std::ptrdiff_t>(std::min(kLooks, retired_.size()));
  const auto known = std::find_if(retired_.rbegin(), retired_.rbegin() + looks, [](StreamState* stream) {
    StreamBody* const copies = stream->copies.load(std::memory_order_acquire);
    OrderChecker& checker = *OrderChecker::active();
    return checker.knows_all_of(stream->handle) && (!copies || checker.knows_all_of(copies->handle));
  });
  if (known == retired_.rbegin() + looks) return nullptr;
  StreamState* const stream = *known;
  retired_.erase(std::next(known).base());
  lock.unlock();
  if (idle(*stream)) return stream;
  lock.lock();
  retired_.insert(retired_.begin(), stream);
  return nullptr;
}

StreamState& StreamPool::take_or_make(Device device) {
  StreamState* stream = of(device).take();
  if (!stream && properties(device).host_memory) stream = of(device).take_retired();
  return stream ? *stream : make(device, backend(device).create_stream(device.index()));
}

StreamState& StreamPool::make(Device device, StreamHandle handle) {
  const DeviceProperties& known = properties(device);
  Backend& of_device = backend(device);
  try {
    return *register_stream({device, known.synchronous, known.checked, &of_device, handle});
  } catch (...) {
    of_device.destroy_stream(handle);
    throw;
  }
}

void StreamPool::give(StreamState& stream) noexcept try {
  std::lock_guard lock(mutex_);
  (stream.checked ? retired_ : free_).push_back(&stream);
} catch (const std::bad_alloc&) {
}

int StreamPool::streams() {
  std::lock_guard lock(mutex_);
  int count = 0;
  for (const auto* list : {&free_, &retired_})
    for (StreamState* stream : *list) count += count_with_copies(stream);
  return count;
}

}  // namespace lockstep::detail
