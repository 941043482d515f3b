#include "lockstep/parallel/ddp/work.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

struct detail::WorkState {
  explicit WorkState(Device where) : device(where) { forget_hand_overs(this); }

  void end(const std::exception_ptr& with, bool by_loss) {
    Event mark;
    if (!with) LOCKSTEP_EDGE(mark.record(current_stream(device)));
    {
      const std::lock_guard lock(mutex);
      if (over && by_loss) return;
      LOCKSTEP_CHECK(!over, "[WorkPromise] expected one result, got a second one");
      over = true;
      error = with;
      event = std::move(mark);
      hand_over(this);
    }
    changed.notify_all();
  }

  const Device device;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::exception_ptr error;
  Event event;  // what completed it
};

void Work::wait(Milliseconds timeout, const std::function<void()>& check) && {
  if (!late()) return;
  constexpr Milliseconds kBetweenChecks{20};
  const Deadline deadline = Deadline::after(timeout);
  const std::shared_ptr<detail::WorkState> state = std::move(state_);
  {
    std::unique_lock lock(state->mutex);
    const auto over = [&] { return state->over; };
    const auto until = [&] { return deadline.left() < kBetweenChecks ? deadline : Deadline::after(kBetweenChecks); };
    while (!detail::wait_until(state->changed, lock, until(), over)) {
      lock.unlock();
      if (check) check();
      lock.lock();
      if (!state->over && deadline.passed())
        detail::fail<TimeoutError>("[Work] expected it to be complete within ", timeout.count(), " ms, got no word");
    }
    take_over(state.get());
    if (state->error) std::rethrow_exception(state->error);
  }
  LOCKSTEP_EDGE(current_stream(state->device).wait(state->event));
  const std::vector<std::function<Work()>> steps = std::move(next_);
  for (const auto& step : steps) step().wait(timeout, check);  // its edge is inside
}

struct WorkPromise::Source {
  explicit Source(Device device) : state(std::make_shared<detail::WorkState>(device)) {}
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    state->end(
        std::make_exception_ptr(Error("[WorkPromise] expected complete() or fail(), got neither before its end")),
        true);
  }
  const std::shared_ptr<detail::WorkState> state;
};

WorkPromise::WorkPromise(Device device) : source_(std::make_shared<Source>(device)) {}

Work WorkPromise::work() const {
  Work work;
  work.state_ = source_->state;
  return work;
}

void WorkPromise::complete() const { source_->state->end(nullptr, false); }

void WorkPromise::fail(const std::exception_ptr& error) const {
  LOCKSTEP_CHECK(error, "[WorkPromise] expected an error to fail with, got none");
  source_->state->end(error, false);
}

}  // namespace lockstep
