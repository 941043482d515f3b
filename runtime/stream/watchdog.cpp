#include "lockstep/runtime/stream/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {
namespace {

constexpr Milliseconds kWatchInterval{50};

struct WatchList {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<InFlight>> watched;
  bool has_thread = false;
};
WatchList& watch_list() {
  static auto* const made = new WatchList;
  return *made;
}

// Shared: what is removed meanwhile lives until it has been looked at.
std::vector<std::shared_ptr<InFlight>> all_watched() {
  WatchList& all = watch_list();
  const std::lock_guard lock(all.mutex);
  return all.watched;
}

// Without the lock, and also when there is no memory: then from the last on, since what is removed meanwhile moves
// nothing that is still to come.
template <class Look>
void for_each_watched(Look look) noexcept {
  try {
    for (const auto& each : all_watched()) look(*each);
    return;
  } catch (const std::bad_alloc&) {
  }
  WatchList& all = watch_list();
  for (std::size_t next = std::numeric_limits<std::size_t>::max();;) {
    std::shared_ptr<InFlight> each;
    {
      const std::lock_guard lock(all.mutex);
      next = std::min(next, all.watched.size());
      if (next == 0) return;
      each = all.watched[--next];
    }
    look(*each);
  }
}

void watch() noexcept {
  WatchList& all = watch_list();
  for (;;) {
    {
      std::unique_lock lock(all.mutex);
      all.changed.wait_for(lock, kWatchInterval);
      if (all.watched.empty()) {
        all.has_thread = false;
        return;
      }
    }
    poll_in_flight();
  }
}

}  // namespace

void add_in_flight(const std::shared_ptr<InFlight>& watched) {
  check_threads("collective");  // before the lock: it may not return
  WatchList& all = watch_list();
  const std::lock_guard lock(all.mutex);
  if (!all.has_thread) start_service_thread("lockstep-watch", [] { watch(); });
  all.has_thread = true;
  all.watched.push_back(watched);
  watched_count.store(static_cast<int>(all.watched.size()), std::memory_order_release);
}

void remove_in_flight(const InFlight* watched) noexcept {
  WatchList& all = watch_list();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.watched, [&](const auto& each) { return each.get() == watched; });
  watched_count.store(static_cast<int>(all.watched.size()), std::memory_order_release);
  all.changed.notify_all();
}

void poll_in_flight() noexcept {
  if (!anything_watched()) return;
  for_each_watched([](InFlight& each) { each.poll(); });
}

void break_off_all(const CommError& why, const std::string& of, const InFlight* but) noexcept {
  for_each_watched([&](InFlight& each) {
    if (&each != but) each.break_off(why, of);
  });
}

void tell_in_flight(Device waiting) {
  if (!anything_watched()) return;
  for (const auto& each : all_watched()) each->tell(waiting);
}

}  // namespace lockstep::detail
