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
#include <unordered_map>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/order/vector_clock.h"

namespace lockstep::detail {

// Numbers everything that is enqueued on any stream, and the moments at which failures reach the host.
std::uint64_t next_sequence();

// The first error of a stream. It makes everything fail that was enqueued before the host has seen it; what is enqueued
// later runs again. Whoever has lost work to it (see caller.h) and was not the one who saw it must still be told: what
// they enqueue fails until they are.
class Failure {
 public:
  Failure(std::exception_ptr error, Device device) : error_(std::move(error)), device_(device) {}
  // Made before there is an error: when there is one there may be no memory to make anything.
  explicit Failure(Device device) : device_(device) {}
  void set_error(std::exception_ptr error) { error_ = std::move(error); }  // before it is shared

  // Whether work fails with it that `caller` enqueued as number `sequence`.
  bool concerns(std::uint64_t sequence, std::uint64_t caller) const;
  // Work of `caller` has failed with it.
  void affects(std::uint64_t caller) noexcept;
  // Throws it on the host: the error itself when it is one of Lockstep's, else a DeviceError with it nested.
  [[noreturn]] void surface();

 private:
  static constexpr std::uint64_t kNotYet = std::numeric_limits<std::uint64_t>::max();

  std::exception_ptr error_;
  const Device device_;
  std::atomic<std::uint64_t> surfaced_at_{kNotYet};  // first
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint64_t> told_at_;  // by caller
  bool affects_unknown_ = false;  // there was no memory to note one: whoever is not in the list may be it
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
