// What an asynchronous host stream reports: that it has reached a point, and whether the work before it failed.
// Shared by the event, the streams that wait and the stream that reports: each may be gone before the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/internal/vector_clock.h"

namespace lockstep::detail {

// Numbers everything that is enqueued on any stream, and the moments at which failures reach the host.
std::uint64_t next_sequence();

// The first error of a stream. It makes everything fail that was enqueued before the host has seen it; what is enqueued
// later runs again.
struct Failure {
  static constexpr std::uint64_t kNotYet = std::numeric_limits<std::uint64_t>::max();

  Failure(std::exception_ptr with, Device on) : error(std::move(with)), device(on) {}

  bool concerns(std::uint64_t sequence) const { return sequence < surfaced_at.load(std::memory_order_acquire); }
  // Throws it on the host: the error itself when it is one of Lockstep's, else a DeviceError with it nested.
  [[noreturn]] void surface();

  const std::exception_ptr error;
  const Device device;
  std::atomic<std::uint64_t> surfaced_at{kNotYet};
};

class Completion {
 public:
  // By the stream, once.
  void finish(std::shared_ptr<Failure> failure);

  bool finished() const;
  bool wait(Deadline deadline) const;  // false at the deadline
  // Once finished.
  const std::shared_ptr<Failure>& failure() const { return failure_; }
  Clock::time_point time() const { return time_; }

  // What is ordered before this point; only the order checker of strict mode needs it. Set before it is shared.
  VectorClock order;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool finished_ = false;
  std::shared_ptr<Failure> failure_;
  Clock::time_point time_;
};

}  // namespace lockstep::detail
