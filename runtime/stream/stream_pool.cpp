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

// With the streams for its copies, and theirs.
template <class Is>
bool all_of_its(StreamBody& stream, const Is& is) {
  return is(stream) &&
         std::all_of(std::begin(state_of(stream).copies), std::end(state_of(stream).copies), [&is](const auto& slot) {
           StreamBody* const copies = slot.load(std::memory_order_acquire);
           return !copies || all_of_its(*copies, is);
         });
}

bool idle(StreamState& stream) {
  try {
    return all_of_its(stream, [](StreamBody& each) { return each.backend->renew_stream(each.handle); });
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

StreamState* StreamPool::take(Shelf& from) {
  std::vector<StreamState*> busy;
  StreamState* found = nullptr;
  while (StreamState* candidate = found ? nullptr : pop(from)) {
    if (idle(*candidate))
      found = candidate;
    else
      busy.push_back(candidate);
  }
  if (!busy.empty()) {
    std::lock_guard lock(mutex_);
    from.free.insert(from.free.begin(), busy.begin(), busy.end());
  }
  return found;
}

StreamState* StreamPool::pop(Shelf& from) {
  std::lock_guard lock(mutex_);
  if (from.free.empty()) return nullptr;
  StreamState* stream = from.free.back();
  from.free.pop_back();
  return stream;
}

// To the order checker a stream that comes back would order strangers' work, depending on who came first: unless who
// takes it knows of all that happened on it. A few are looked at, the last ones first.
StreamState* StreamPool::take_retired(Shelf& from) {
  constexpr std::size_t kLooks = 8;
  std::vector<StreamState*>& retired = from.retired;
  std::unique_lock lock(mutex_);
  const auto looks = static_cast<std::ptrdiff_t>(std::min(kLooks, retired.size()));
  const auto known = std::find_if(retired.rbegin(), retired.rbegin() + looks, [](StreamState* stream) {
    OrderChecker& checker = *OrderChecker::active();
    return all_of_its(*stream, [&checker](StreamBody& each) { return checker.knows_all_of(each.handle); });
  });
  if (known == retired.rbegin() + looks) return nullptr;
  StreamState* const stream = *known;
  retired.erase(std::next(known).base());
  lock.unlock();
  if (idle(*stream)) return stream;
  lock.lock();
  retired.insert(retired.begin(), stream);
  return nullptr;
}

StreamState& StreamPool::take_or_make(Device device, StreamPriority priority) {
  StreamPool& pool = of(device);
  Shelf& shelf = pool.shelf(priority);
  StreamState* stream = pool.take(shelf);
  if (!stream) stream = pool.take_retired(shelf);
  return stream ? *stream : make(device, priority);
}

StreamState& StreamPool::make(Device device, StreamPriority priority) {
  return make(device, backend(device).create_stream(device.index(), priority), priority);
}

StreamState& StreamPool::make(Device device, StreamHandle handle, StreamPriority priority) {
  const DeviceProperties& known = properties(device);
  Backend& of_device = backend(device);
  try {
    return *register_stream({device, known.synchronous, known.checked, &of_device, handle, priority});
  } catch (...) {
    of_device.destroy_stream(handle);
    throw;
  }
}

void StreamPool::give(StreamState& stream) noexcept try {
  std::lock_guard lock(mutex_);
  Shelf& shelf = this->shelf(stream.priority);
  (stream.checked ? shelf.retired : shelf.free).push_back(&stream);
} catch (const std::bad_alloc&) {
}

int StreamPool::streams() {
  std::lock_guard lock(mutex_);
  int count = 0;
  for (const Shelf& shelf : shelves_)
    for (const auto* list : {&shelf.free, &shelf.retired})
      for (StreamState* stream : *list) count += count_with_copies(stream);
  return count;
}

}  // namespace lockstep::detail
