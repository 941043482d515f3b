// Who a thread works for: itself, or, on a device thread, whoever posted the task. Errors of devices that work on their
// own are told to each of them. Private to the library.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::detail {

// Set by the first backend that needs to know.
inline constinit std::atomic<bool> callers_matter{false};
inline constinit thread_local std::uint64_t current_caller = 0;

inline std::uint64_t caller() {
  static constinit std::atomic<std::uint64_t> next{1};
  if (current_caller == 0) current_caller = next.fetch_add(1, std::memory_order_relaxed);
  return current_caller;
}

// The calling thread works for `caller` until the scope ends.
class CallerScope {
 public:
  explicit CallerScope(std::uint64_t caller) : before_(current_caller) { current_caller = caller; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
  ~CallerScope() { current_caller = before_; }

 private:
  std::uint64_t before_;
};

}  // namespace lockstep::detail
