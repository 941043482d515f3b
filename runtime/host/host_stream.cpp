#include "lockstep/runtime/host/host_stream.h"

#include <sched.h>

#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/mix.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {
namespace {

// After that a stream with nothing to do gives its thread back; it gets another one when it needs it.
constexpr std::chrono::seconds kIdleStreamTime{2};

std::atomic<std::uint64_t> steps_of_all_streams{0};
// How many streams have something to do and do not wait for another one.
std::atomic<int> able_streams{0};

}  // namespace

void Schedule::pause() {
  if (!on_) return;
  steps_of_all_streams.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t random = mix(state_ += kMixStep);
  const unsigned kind = random % 32, amount = 1 + random / 32 % 8;
  if (kind < 8) {
    for (unsigned i = 0; i < amount; ++i) sched_yield();
  } else if (kind == 8) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 * amount));
  } else if (kind < 12) {
    // Until the others have done something, or have nothing to do.
    const std::uint64_t until = steps_of_all_streams.load(std::memory_order_relaxed) + amount;
    const Clock::time_point give_up = Clock::now() + std::chrono::microseconds(200);
    while (steps_of_all_streams.load(std::memory_order_relaxed) < until &&
           able_streams.load(std::memory_order_relaxed) > 1 && Clock::now() < give_up) {
      sched_yield();
    }
  }
}

HostStream::HostStream(Device device, Schedule schedule, Milliseconds timeout, bool traced)
    : device_(device), timeout_(timeout), traced_(traced), schedule_(schedule) {}

void HostStream::close() noexcept {
  std::unique_lock lock(mutex_);
  closed_ = true;
  if (has_thread_) {
    changed_.notify_one();
    return;  // the thread ends it
  }
  lock.unlock();
  delete this;
}

void HostStream::run(UniqueFunction task, const trace::Work& work) {
  notice_exit();
  Item item;
  if (traced_ && trace::active()) [[unlikely]]
    item.token = trace::enqueued(this, device_, work);
  std::unique_lock lock(mutex_);
  item.task = std::move(task);
  push(lock, std::move(item));
}

void HostStream::record(std::shared_ptr<Completion> mark) {
  std::unique_lock lock(mutex_);
  if (all_done()) {
    const bool failed = failure_ && failure_->concerns(next_sequence(), caller());
    mark->finish(failed ? failure_ : nullptr);
    return;
  }
  Item item;
  item.mark = std::move(mark);
  push(lock, std::move(item));
}

void HostStream::wait_for(std::shared_ptr<Completion> mark) {
  std::unique_lock lock(mutex_);
  if (all_done() && mark->finished() && !mark->failure()) return;
  Item item;
  item.mark = std::move(mark);
  item.waits = true;
  push(lock, std::move(item));
}

bool HostStream::idle() {
  std::unique_lock lock(mutex_);
  if (!all_done()) return false;
  if (const std::shared_ptr<Failure> failure = failure_; failure && failure->concerns(next_sequence(), caller())) {
    lock.unlock();
    failure->surface();
  }
  return true;
}

void HostStream::push(std::unique_lock<std::mutex>& lock, Item item) {
  if (library_threads.load(std::memory_order_relaxed) != Threads::run) [[unlikely]] {
    lock.unlock();  // the call may not return
    fail_without_threads("stream");
  }
  item.sequence = next_sequence();
  item.caller = caller();
  item.tick = ticks_.issued.load(std::memory_order_relaxed);
  if (!spare_) spare_ = std::make_shared<Failure>(device_);
  const bool had_nothing = all_done();
  queue_.push_back(std::move(item));
  if (had_nothing) able_streams.fetch_add(1, std::memory_order_relaxed);
  if (has_thread_) {
    lock.unlock();
    changed_.notify_one();
    return;
  }
  threads_begin();
  try {
    start_service_thread(cat("lss-", device_), [this] { work(); });
    has_thread_ = true;
  } catch (const std::bad_alloc&) {
    drop_last();
    throw;
  } catch (const std::system_error& error) {
    drop_last();
    throw DeviceError(device_, 0, cat("[stream] expected to start a thread, got: ", error.what()));
  }
}

void HostStream::drop_last() noexcept {
  queue_.pop_back();
  if (all_done()) able_streams.fetch_sub(1, std::memory_order_relaxed);
}

void HostStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      if (closed_) break;
      if (!changed_.wait_for(lock, kIdleStreamTime, [this] { return !queue_.empty() || closed_; })) {
        has_thread_ = false;
        return;
      }
      continue;
    }
    Item item = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    rest_if_ended();
    perform(item);
    lock.lock();
    running_ = false;
    if (all_done()) able_streams.fetch_sub(1, std::memory_order_relaxed);
    if (item.mark && !item.waits) {
      // Reported here, so that whoever sees the mark finished sees the stream idle as well.
      item.mark->finish(concerned(item) ? failure_ : nullptr);
    }
  }
  lock.unlock();
  delete this;
}

void HostStream::perform(Item& item) noexcept {
  const bool skip = concerned(item);
  if (skip) failure_->affects(item.caller);
  schedule_.pause();
  try {
    if (item.task) {
      if (!skip) {
        trace::began(item.token);
        host_faults().before_task(device_);
        item.task();
      }
    } else if (item.waits) {
      able_streams.fetch_sub(1, std::memory_order_relaxed);
      const bool reached = item.mark->wait(Deadline::after(timeout_));
      able_streams.fetch_add(1, std::memory_order_relaxed);
      if (skip) {
        // The first one stays.
      } else if (!reached) {
        throw TimeoutError(cat("[stream] expected the work that ", device_, " waits for to finish within ",
                               timeout_.count(), " ms, got nothing"));
      } else if (const auto& failure = item.mark->failure(); failure && failure->concerns(item.sequence, item.caller)) {
        fail(item, failure);
      }
    }
  } catch (...) {
    fail(item, failure_of(std::current_exception()));
  }
  if (item.task && !skip) trace::ended(item.token);
  item.task.reset();
  ticks_.completed.store(item.tick, std::memory_order_relaxed);
}

std::shared_ptr<Failure> HostStream::failure_of(std::exception_ptr error) noexcept {
  try {
    return std::make_shared<Failure>(error, device_);
  } catch (const std::bad_alloc&) {
  }
  std::lock_guard lock(mutex_);
  if (!spare_) return failure_;  // used up since anybody enqueued: the failure that did so stays
  spare_->set_error(std::move(error));
  return std::exchange(spare_, nullptr);
}

void HostStream::fail(const Item& item, std::shared_ptr<Failure> failure) noexcept {
  failure->affects(item.caller);
  std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

}  // namespace lockstep::detail
