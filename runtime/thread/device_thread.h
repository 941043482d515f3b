// Persistent worker threads, one per device and purpose, made on first use and never destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/unique_function.h"

namespace lockstep {

namespace detail {
std::string wait_for_device_threads(Deadline deadline);  // NOLINT(readability-redundant-declaration): for the friends
void wake_device_threads() noexcept;                     // NOLINT(readability-redundant-declaration)
}  // namespace detail

// A thread bound to one device that runs tasks in the order they were posted. Idle, it spins for about 50 microseconds,
// giving its core to whoever wants it, and then sleeps.
class LOCKSTEP_API DeviceThread {
 public:
  DeviceThread(Device device, const char* name);
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  Device device() const { return device_; }
  // Appends a task. The task must not throw. Throws DeviceError while the thread is lost (see abandon).
  void post(UniqueFunction task);
  // Declares that the running task has outlived its deadline: post() throws DeviceError with `reason` until the thread
  // has returned from it.
  void abandon(const std::string& reason);
  bool lost() const;

  // The device thread that is calling, or null.
  static DeviceThread* current();

 private:
  friend std::string detail::wait_for_device_threads(Deadline deadline);
  friend void detail::wake_device_threads() noexcept;
  struct State;
  bool idle() const;             // nothing runs, and nothing waits to run
  std::uint32_t posted() const;  // changes with every task that is posted
  void wake() const noexcept;    // to see that shutdown() has been called
  Device device_;
  State* state_;  // never freed: the thread outlives main
};

// The thread that runs replicas on `device`, the one that runs backward nodes there, and one that enqueues sums of
// gradients meanwhile (the last two never run user tasks).
LOCKSTEP_API DeviceThread& device_thread(Device device);
LOCKSTEP_API DeviceThread& backward_thread(Device device);
LOCKSTEP_API DeviceThread& sum_thread(Device device);

// Counts finished tasks; one thread waits for them. Spins for a few microseconds (yielding), then sleeps.
// Tasks hold it by shared_ptr, so that a task that finishes after the deadline has something to report to.
class LOCKSTEP_API Join {
 public:
  explicit Join(int count);
  void done();                   // by each task, once
  bool wait(Deadline deadline);  // false at the deadline
  int remaining() const;

 private:
  std::atomic<std::uint32_t> state_;  // how many are missing, and whether somebody sleeps
};

}  // namespace lockstep
