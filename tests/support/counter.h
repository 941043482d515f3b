// Threads wait for each other by counting, so that tests need not sleep.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "lockstep/runtime/deadline.h"

namespace lockstep::test {

// Counts, and lets threads wait for the count. Copies share it.
class Counter {
 public:
  void add(int amount = 1) const {
    std::lock_guard lock(body_->mutex);
    body_->count += amount;
    body_->changed.notify_all();
  }
  int value() const {
    std::lock_guard lock(body_->mutex);
    return body_->count;
  }
  // False when it takes longer than a minute: a hang, not slowness.
  bool reaches(int count) const {
    std::unique_lock lock(body_->mutex);
    const auto deadline = Deadline::after(Milliseconds(60'000)).time();
    return body_->changed.wait_until(lock, deadline, [&] { return body_->count >= count; });
  }

 private:
  struct Body {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
  };
  std::shared_ptr<Body> body_ = std::make_shared<Body>();
};

}  // namespace lockstep::test
