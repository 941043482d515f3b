#include "lockstep/tensor/data/pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order.h"

namespace lockstep::detail {
namespace {

// A consumer may take as long as it likes; a worker that waits for it looks up now and then.
constexpr Milliseconds kIdle{60'000};

// For what workers are at when the process ends: then one that waits for a device does not return.
constexpr Milliseconds kAtExit{1'000};

struct ItemPlace {
  bool ready = false;
  std::exception_ptr error;
};

}  // namespace

struct Pipeline::State {
  Options options;
  Produce produce;
  std::mutex mutex;
  std::condition_variable ready, space, ended;
  std::int64_t next = 0;      // to be begun
  std::int64_t released = 0;  // items before this one are gone
  bool stopping = false;
  int running = 0;  // workers
  const std::uint64_t generation = fork_generation();
  std::vector<ItemPlace> places;  // of item i: i mod window
  std::vector<std::thread> threads;

  ItemPlace& place(std::int64_t item) { return places[static_cast<std::size_t>(item % options.window)]; }
};

Pipeline::Pipeline(Options options, Produce produce) : state_(std::make_shared<State>()) {
  LOCKSTEP_CHECK(options.workers >= 0 && options.window >= 1 && options.count >= 0,
                 "[Pipeline] expected numbers that are not negative and a window, got ", options.workers, " workers, ",
                 options.count, " items, a window of ", options.window);
  state_->options = options;
  state_->produce = std::move(produce);
  state_->places.resize(static_cast<std::size_t>(options.window));
  for (const ItemPlace& place : state_->places) forget_hand_overs(&place);
  try {
    for (int worker = 0; worker < options.workers; ++worker) {
      {
        std::lock_guard lock(state_->mutex);
        ++state_->running;
      }
      try {
        state_->threads.emplace_back(&Pipeline::work, state_, worker);
      } catch (...) {
        std::lock_guard lock(state_->mutex);
        --state_->running;
        throw;
      }
    }
  } catch (const std::exception& error) {
    stop();
    throw Error(cat("[DataLoader] expected to start ", options.workers, " worker threads, got: ", error.what()));
  }
}

Pipeline::~Pipeline() { stop(); }

void Pipeline::work(const std::shared_ptr<State>& state, int worker) noexcept {
  State& s = *state;
  const ComputeAlone alone;  // there are as many workers as the program wants cores to be busy
  std::unique_lock lock(s.mutex);
  for (;;) {
    while (!s.stopping && s.next < s.options.count && s.next >= s.released + s.options.window)
      s.space.wait_until(lock, Deadline::after(kIdle).time());
    if (s.stopping || s.next >= s.options.count) break;
    const std::int64_t item = s.next++;
    ItemPlace& place = s.place(item);
    lock.unlock();
    take_over(&place);
    std::exception_ptr error;
    try {
      s.produce(item, worker);
    } catch (...) {
      error = std::current_exception();
    }
    hand_over(&place);
    lock.lock();
    place.error = std::move(error);
    place.ready = true;
    s.ready.notify_one();
  }
  --s.running;
  s.ended.notify_one();
}

void Pipeline::stop() noexcept {
  State& s = *state_;
  if (s.generation != fork_generation()) {  // the workers are the parent's, and so is all that they hold
    new (std::nothrow) std::shared_ptr<State>(state_);
    return;
  }
  std::unique_lock lock(s.mutex);
  s.stopping = true;
  s.space.notify_all();
  const bool exits = process_ends();
  const Deadline deadline = Deadline::after(exits ? std::min(s.options.timeout, kAtExit) : s.options.timeout);
  while (s.running > 0 && s.ended.wait_until(lock, deadline.time()) == std::cv_status::no_timeout) {
  }
  const int late = s.running;
  lock.unlock();
  for (std::thread& thread : s.threads) late > 0 ? thread.detach() : thread.join();
  if (late == 0 || exits) return;
  try {
    log(LogLevel::warning, cat("[DataLoader] ", late, " workers did not return from their samples in ",
                               s.options.timeout.count(), " ms: left to themselves"));
  } catch (...) {  // nothing is to be done about a message that cannot be written
  }
}

void Pipeline::await(std::int64_t item) {
  State& s = *state_;
  if (s.options.workers == 0) return s.produce(item, 0);
  check_generation("DataLoader", s.generation);
  ItemPlace& place = s.place(item);
  std::exception_ptr error;
  {
    const Deadline deadline = Deadline::after(s.options.timeout);
    std::unique_lock lock(s.mutex);
    while (!place.ready) {
      if (s.ready.wait_until(lock, deadline.time()) == std::cv_status::timeout && !place.ready)
        throw TimeoutError(
            cat("[DataLoader] expected batch ", item, " within ", s.options.timeout.count(), " ms, got none"));
    }
    error = place.error;
  }
  take_over(&place);
  if (error) std::rethrow_exception(error);
}

void Pipeline::release(std::int64_t item) {
  State& s = *state_;
  if (s.options.workers == 0) return;
  ItemPlace& place = s.place(item);
  hand_over(&place);
  std::lock_guard lock(s.mutex);
  place = {};
  s.released = item + 1;
  s.space.notify_one();
}

}  // namespace lockstep::detail
