// A stream of an asynchronous host device: a thread that runs what is in its queue, in order. Every call may come from
// any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/host/completion.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/runtime/unique_function.h"

namespace lockstep::detail {

// Decides by seed when a stream pauses between two pieces of work, so that streams that nothing orders run in another
// order with every seed. Seed 0: never.
class Schedule {
 public:
  Schedule(std::uint64_t seed, std::uint64_t stream_number)
      : on_(seed != 0), state_(seed * 0x9E3779B97F4A7C15u + stream_number) {}
  void pause();

 private:
  bool on_;
  std::uint64_t state_;
};

class HostStream {
 public:
  // Work that waits for another stream's longer than `timeout` fails.
  // `traced`: its tasks are spans of a trace.
  HostStream(Device device, Schedule schedule, Milliseconds timeout, bool traced = true);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  // Ends the object, once it has run what is in the queue.
  void close() noexcept;

  Device device() const { return device_; }
  StreamTicks& ticks() { return ticks_; }

  // Traced as `work`, else under the name that its enqueuing thread has for it.
  void run(UniqueFunction task, const trace::Work& work = {});
  void record(std::shared_ptr<Completion> mark);
  void wait_for(std::shared_ptr<Completion> mark);
  // True when nothing is left to run. Throws what has failed, once.
  bool idle();

 private:
  struct Item {
    UniqueFunction task;               // or
    std::shared_ptr<Completion> mark;  // to finish, or to wait for
    bool waits = false;
    std::uint64_t sequence = 0;
    std::uint64_t tick = 0;
    std::uint64_t caller = 0;
    trace::Token token = 0;
  };
  ~HostStream() = default;

  void push(std::unique_lock<std::mutex>& lock, Item item);
  void drop_last() noexcept;
  void work();
  void perform(Item& item) noexcept;
  void fail(const Item& item, std::shared_ptr<Failure> failure) noexcept;
  std::shared_ptr<Failure> failure_of(std::exception_ptr error) noexcept;
  bool concerned(const Item& item) const { return failure_ && failure_->concerns(item.sequence, item.caller); }
  bool all_done() const { return queue_.empty() && !running_; }

  const Device device_;
  const Milliseconds timeout_;
  const bool traced_;
  Schedule schedule_;  // the thread's
  StreamTicks ticks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::shared_ptr<Failure> failure_;  // the last one; written by the thread
  std::shared_ptr<Failure> spare_;    // for a failure when there is no memory; whoever enqueues sees to it
  bool has_thread_ = false;
  bool running_ = false;  // an item
  bool closed_ = false;
};

}  // namespace lockstep::detail
