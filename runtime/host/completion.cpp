#include "lockstep/runtime/host/completion.h"

#include <algorithm>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool Failure::concerns(std::uint64_t sequence, std::uint64_t caller) const {
  if (sequence < surfaced_at_.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(mutex_);
  const auto found = told_at_.find(caller);
  return found != told_at_.end() ? sequence < found->second : affects_unknown_;
}

void Failure::affects(std::uint64_t caller) noexcept {
  std::lock_guard lock(mutex_);
  try {
    told_at_.try_emplace(caller, kNotYet);
  } catch (const std::bad_alloc&) {
    affects_unknown_ = true;
  }
}

void Failure::surface() {
  const std::uint64_t now = next_sequence();
  {
    std::lock_guard lock(mutex_);
    std::uint64_t& told = told_at_.try_emplace(caller(), kNotYet).first->second;
    told = std::min(told, now);
  }
  std::uint64_t expected = kNotYet;
  surfaced_at_.compare_exchange_strong(expected, now, std::memory_order_acq_rel);
  try {
    std::rethrow_exception(error_);
  } catch (const Error&) {
    throw;
  } catch (...) {
    std::throw_with_nested(
        DeviceError(device_, 0, cat("[wait] expected the work to succeed, got: ", describe(std::current_exception()))));
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
