#include "lockstep/runtime/stream/growth_lock.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/watchdog.h"

namespace lockstep::detail {
namespace {

struct Growth {
  std::mutex mutex;
  std::condition_variable changed;
  int collectives = 0;
  bool growing = false;
};
Growth& growth() {
  static auto* const made = new Growth;
  return *made;
}

thread_local int held = 0;  // by this thread

}  // namespace

GrowthLock::GrowthLock() {
  if (held > 0) {
    ++held;
    return;
  }
  Growth& state = growth();
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return !state.growing; });
    if (state.collectives == 0) break;
    // Somebody must look whether they are through.
    lock.unlock();
    poll_in_flight();
    lock.lock();
    if (state.collectives > 0) state.changed.wait_for(lock, std::chrono::microseconds(200));
  }
  state.growing = true;
  held = 1;
}

GrowthLock::~GrowthLock() {
  if (--held > 0) return;
  Growth& state = growth();
  const std::lock_guard lock(state.mutex);
  state.growing = false;
  state.changed.notify_all();
}

void begin_collective() {
  LOCKSTEP_CHECK(held == 0,
                 "[collective] expected no raw memory call under way in its thread, got a collective inside one");
  Growth& state = growth();
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return !state.growing; });
  ++state.collectives;
}

void end_collective() noexcept {
  Growth& state = growth();
  const std::lock_guard lock(state.mutex);
  --state.collectives;
  state.changed.notify_all();
}

}  // namespace lockstep::detail
