#include "lockstep/runtime/host/completion.h"

#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Failure::surface() {
  std::uint64_t expected = kNotYet;
  surfaced_at.compare_exchange_strong(expected, next_sequence(), std::memory_order_acq_rel);
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;
  } catch (...) {
    std::throw_with_nested(
        DeviceError(device, 0, cat("[wait] expected the work to succeed, got: ", describe(std::current_exception()))));
  }
}

void Completion::finish(std::shared_ptr<Failure> failure) {
  {
    std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    time_ = Clock::now();
    finished_ = true;
  }
  changed_.notify_all();
}

bool Completion::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}

bool Completion::wait(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.time(), [this] { return finished_; });
}

}  // namespace lockstep::detail
