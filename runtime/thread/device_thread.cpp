#include "lockstep/runtime/thread/device_thread.h"

#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/futex.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/record/recorder.h"
#include "lockstep/runtime/service_thread.h"
#include "lockstep/runtime/trace/traced_device.h"

namespace lockstep {
namespace {

using detail::futex_wait;
using detail::futex_wake_all;
using detail::OrderChecker;
using detail::Recorder;
using detail::spin_while;

constexpr std::chrono::microseconds kIdleSpin{50};
constexpr std::chrono::microseconds kJoinSpin{20};

thread_local DeviceThread* calling_thread = nullptr;

// Of the exception that is being handled.
void report(const char* expected, Device device) noexcept try {
  log(LogLevel::error,
      cat("[DeviceThread] expected ", expected, " on ", device, ", got: ", detail::describe(std::current_exception())));
} catch (...) {  // there is no memory for that either
}

// A queue that keeps its memory: posting allocates nothing once it has been as long as it gets.
class TaskQueue {
 public:
  bool empty() const { return count_ == 0; }
  void push(UniqueFunction task) {
    if (count_ == ring_.size()) grow();
    ring_[(first_ + count_) % ring_.size()] = std::move(task);
    ++count_;
  }
  UniqueFunction pop() {
    UniqueFunction task = std::move(ring_[first_]);
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return task;
  }

 private:
  void grow() {
    std::vector<UniqueFunction> larger(ring_.empty() ? 16 : 2 * ring_.size());
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
    ring_.swap(larger);
    first_ = 0;
  }
  std::vector<UniqueFunction> ring_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace

struct DeviceThread::State {
  std::mutex mutex;
  TaskQueue queue;
  bool running = false;  // a task
  std::string reason;    // why the thread is lost

  std::atomic<bool> lost{false};
  std::atomic<std::uint32_t> posted{0};  // counts tasks; the word that the thread sleeps on
  std::atomic<bool> asleep{false};

  void work(DeviceThread* self, Device device, std::uint32_t record_number);
  void sleep(std::uint32_t seen);
};

void DeviceThread::State::work(DeviceThread* self, Device device, std::uint32_t record_number) {
  if (Recorder* const recorder = Recorder::active()) recorder->come(record_number);
  calling_thread = self;
  detail::thread_device = device;
  try {
    LOCKSTEP_EDGE(backend(device).bind_thread(device.index()));
  } catch (...) {
    // Tasks still run: what they call reports the device's state better than a thread that is silent.
    report("to bind a thread", device);
  }
  std::unique_lock lock(mutex);
  for (;;) {
    if (queue.empty()) {
      if (detail::library_threads.load(std::memory_order_acquire) == detail::Threads::ended) return;
      const std::uint32_t seen = posted.load(std::memory_order_relaxed);  // changes under the mutex only
      lock.unlock();
      sleep(seen);
      lock.lock();
      continue;
    }
    UniqueFunction task = queue.pop();
    running = true;
    lock.unlock();
    detail::rest_if_ended();
    try {
      task();
      task.reset();
    } catch (...) {
      report("a task that does not throw", device);
    }
    lock.lock();
    running = false;
    lost.store(false, std::memory_order_release);
  }
}

void DeviceThread::State::sleep(std::uint32_t seen) {
  auto nothing_new = [&] { return posted.load(std::memory_order_acquire) == seen; };
  if (Recorder* const recorder = Recorder::active()) {
    recorder->wait_until([&] { return !nothing_new(); }, Deadline::after(Milliseconds::max()));
    return;
  }
  spin_while(nothing_new, kIdleSpin);
  while (nothing_new()) {
    // Either the poster sees `asleep`, or we see what it posted.
    asleep.store(true, std::memory_order_seq_cst);
    if (posted.load(std::memory_order_seq_cst) == seen) futex_wait(posted, seen, nullptr);
    asleep.store(false, std::memory_order_relaxed);
  }
}

DeviceThread::DeviceThread(Device device, const char* name) : device_(device), state_(nullptr) {
  ordinal(device);  // throws for an absent device
  auto state = std::make_unique<State>();
  detail::check_threads("DeviceThread");
  detail::threads_begin();
  Recorder* const recorder = Recorder::active();
  const std::uint32_t number = recorder ? recorder->announce(cat(name, '-', device)) : 0;
  try {
    detail::start_service_thread(cat(name, '-', device), [self = this, shared = state.get(), device, number] {
      shared->work(self, device, number);
    });
  } catch (const std::system_error& error) {
    if (recorder) recorder->go(number);
    throw DeviceError(device, 0, cat("[DeviceThread] expected to start a thread, got: ", error.what()));
  }
  state_ = state.release();
}

void DeviceThread::post(UniqueFunction task) {
  detail::check_threads("DeviceThread");
  detail::notice_exit();
  if (detail::callers_matter.load(std::memory_order_relaxed)) [[unlikely]] {
    task = [who = detail::caller(), run = std::move(task)]() mutable {
      const detail::CallerScope scope(who);
      run();
      run.reset();
    };
  }
  if (OrderChecker* checker = OrderChecker::active()) [[unlikely]] {
    task = [checker, known = checker->known(), run = std::move(task)]() mutable {
      try {
        checker->learn(known);
      } catch (const std::bad_alloc&) {  // a task that was taken is run
      }
      run();
    };
  }
  if (Recorder* const recorder = Recorder::active()) [[unlikely]] {
    task = [recorder, mark = recorder->here(), run = std::move(task)]() mutable {
      recorder->after(mark);
      run();
      run.reset();
    };
  }
  {
    std::lock_guard lock(state_->mutex);
    if (state_->lost.load(std::memory_order_relaxed)) throw DeviceError(device_, 0, state_->reason);
    state_->queue.push(std::move(task));
    state_->posted.fetch_add(1, std::memory_order_seq_cst);
  }
  if (state_->asleep.load(std::memory_order_seq_cst)) futex_wake_all(state_->posted);
}

void DeviceThread::abandon(const std::string& reason) {
  std::lock_guard lock(state_->mutex);
  if (!state_->running) return;  // it has just returned
  state_->reason = reason;
  state_->lost.store(true, std::memory_order_release);
}

bool DeviceThread::lost() const { return state_->lost.load(std::memory_order_acquire); }

DeviceThread* DeviceThread::current() { return calling_thread; }

namespace {

// Threads of one purpose, by device.
struct ThreadTable {
  explicit ThreadTable(const char* purpose) : name(purpose) {}

  const char* const name;
  std::mutex mutex;
  detail::PerDevice<std::atomic<DeviceThread*>> threads;

  DeviceThread& at(Device device) {
    std::atomic<DeviceThread*>& slot = threads[device];
    DeviceThread* thread = slot.load(std::memory_order_acquire);
    if (!thread) [[unlikely]] {
      detail::check_threads("DeviceThread");  // before the lock: it may not return
      std::lock_guard lock(mutex);
      thread = slot.load(std::memory_order_acquire);
      if (!thread) slot.store(thread = new DeviceThread(device, name), std::memory_order_release);
    }
    return *thread;
  }
};

ThreadTable& replica_threads() {
  static ThreadTable* const table = new ThreadTable("ls");
  return *table;
}
ThreadTable& backward_threads() {
  static ThreadTable* const table = new ThreadTable("lsb");
  return *table;
}
ThreadTable& sum_threads() {
  static ThreadTable* const table = new ThreadTable("lss");
  return *table;
}

template <class F>
void for_each_thread(F&& f) {
  for (ThreadTable* table : {&replica_threads(), &backward_threads(), &sum_threads()})
    for (const auto& slot : table->threads)
      if (DeviceThread* const thread = slot.load(std::memory_order_acquire)) f(*table, *thread);
}

}  // namespace

DeviceThread& device_thread(Device device) { return replica_threads().at(device); }

DeviceThread& backward_thread(Device device) { return backward_threads().at(device); }

DeviceThread& sum_thread(Device device) { return sum_threads().at(device); }

bool DeviceThread::idle() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->running && state_->queue.empty();
}

std::uint32_t DeviceThread::posted() const { return state_->posted.load(std::memory_order_seq_cst); }

void DeviceThread::wake() const noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->posted.fetch_add(1, std::memory_order_seq_cst);
  }
  futex_wake_all(state_->posted);
}

std::string detail::wait_for_device_threads(Deadline deadline) {
  const auto posts = [] {
    std::uint32_t sum = 0;
    for_each_thread([&](const ThreadTable&, const DeviceThread& thread) { sum += thread.posted(); });
    return sum;
  };
  for (;;) {
    const std::uint32_t before = posts();
    std::string running;
    for_each_thread([&](const ThreadTable& table, const DeviceThread& thread) {
      if (thread.idle()) return;
      const char* const what = &table == &backward_threads() ? "a backward on "
                               : &table == &sum_threads()    ? "sums of gradients on "
                                                             : "a replica on ";
      running += cat(running.empty() ? "" : ", ", what, thread.device());
    });
    // One that was idle when it was looked at may have been given work since, by one that is idle now.
    if (running.empty() && posts() != before) running = "replicas that give each other work";
    if (running.empty() || deadline.passed()) return running;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void detail::wake_device_threads() noexcept {
  for_each_thread([](const ThreadTable&, const DeviceThread& thread) { thread.wake(); });
}

// --- Join ------------------------------------------------------------------------------------------------------------

namespace {
constexpr std::uint32_t kSleeper = 1u << 31;  // in the same word as the count, so that done() touches nothing after it
}

Join::Join(int count) : state_(static_cast<std::uint32_t>(count)) {
  LOCKSTEP_CHECK(count >= 0, "[Join] expected a count of tasks, got ", count);
  forget_hand_overs(this);
}

void Join::done() {
  hand_over(this);
  if (state_.fetch_sub(1, std::memory_order_acq_rel) == (1 | kSleeper)) futex_wake_all(state_);
}

int Join::remaining() const { return static_cast<int>(state_.load(std::memory_order_acquire) & ~kSleeper); }

bool Join::wait(Deadline deadline) {
  if (Recorder* const recorder = Recorder::active()) {
    const bool in_time = recorder->wait_until([this] { return remaining() == 0; }, deadline);
    if (in_time) take_over(this);
    return in_time;
  }
  spin_while([this] { return remaining() > 0; }, kJoinSpin);
  for (;;) {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    if ((state & ~kSleeper) == 0) {
      take_over(this);
      return true;
    }
    if (deadline.passed()) return false;
    if (!(state & kSleeper)) {
      state_.fetch_or(kSleeper, std::memory_order_acq_rel);
    } else {
      futex_wait(state_, state, &deadline);
    }
  }
}

}  // namespace lockstep
