#include "lockstep/runtime/thread/shutdown.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/device_thread.h"

namespace lockstep {
namespace {

bool at_rest(Device device, Deadline deadline) {
  // What work has thrown, a time-out too, is told once, and hides what other streams do: so it is asked again.
  constexpr int kMostErrors = 1000;
  for (int errors = 0; errors < kMostErrors; ++errors) {
    try {
      LOCKSTEP_EDGE(synchronize(device, deadline.left()));
      return true;
    } catch (const TimeoutError&) {
      if (deadline.passed()) return false;
    } catch (const Error&) {
    }
  }
  return true;  // a device that is lost
}

}  // namespace

void shutdown(Milliseconds timeout) {
  using detail::Threads;
  if (DeviceThread::current())
    throw Error(cat("[shutdown] expected a call from outside of replicas, got one from the thread of ",
                    DeviceThread::current()->device()));
  if (detail::library_threads.load(std::memory_order_acquire) != Threads::run) return;
  const Deadline deadline = Deadline::after(timeout);
  std::string running = detail::wait_for_device_threads(deadline);
  if (detail::the_device_table.load(std::memory_order_acquire)) {
    for (const Device device : all_devices())
      if (!at_rest(device, deadline)) running += cat(running.empty() ? "" : ", ", "work on ", device);
  }
  Threads before = Threads::run;
  if (!detail::library_threads.compare_exchange_strong(before, Threads::ended)) return;
  detail::wake_device_threads();
  if (!running.empty())
    throw TimeoutError(
        cat("[shutdown] expected the work in flight to end within ", timeout.count(), " ms, still running: ", running));
}

}  // namespace lockstep
