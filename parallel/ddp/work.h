// What a communication hook has started: complete at once, or when another thread says so.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

namespace detail {
struct WorkState;
}

// Two kinds, and which one a work is does not depend on timing, so that all ranks do the same in the same order:
// - one that a hook makes without a promise is complete. The streams order what it has enqueued, nobody waits for it.
// - one of a WorkPromise is late. Whoever waits for it (DistributedDataParallel: at the end of the backward, bucket by
//   bucket) blocks until the promise is kept, and then runs what was chained.
// Belongs to one thread at a time.
class LOCKSTEP_API Work {
 public:
  Work() = default;  // complete

  bool late() const { return state_ != nullptr; }

  // `next` follows this work, in place of which the result stands: at once, in this thread, when it is complete; in the
  // thread that waits, with that thread's current streams, when it is late. `next` returns nothing or a Work, which is
  // waited for too. What it throws surfaces in the call that runs it; it is not run when this work fails.
  template <class F>
  Work then(F next) && {
    if (!late()) return run(next);
    next_.push_back([next = std::move(next)]() mutable { return run(next); });
    return std::move(*this);
  }

  // Blocks until the promise is kept and orders the current stream of its device after what kept it, then runs what was
  // chained. Throws what the promise or a chained step failed with, and TimeoutError at the deadline; a work that a
  // chained step returns has the whole `timeout` again. `check` is called now and then while it waits, and may throw.
  void wait(Milliseconds timeout = kDefaultTimeout, const std::function<void()>& check = {}) &&;

 private:
  friend class WorkPromise;
  template <class F>
  static Work run(F& next) {
    if constexpr (std::is_void_v<decltype(next())>) {
      next();
      return {};
    } else {
      return next();
    }
  }
  std::shared_ptr<detail::WorkState> state_;
  std::vector<std::function<Work()>> next_;
};

// The other end of a late work, for the thread that will complete it. Copies are handles. When the last one goes
// without a word the work has failed. Thread-safe.
class LOCKSTEP_API WorkPromise {
 public:
  explicit WorkPromise(Device device);

  Work work() const;  // to be asked for once
  // The work is done by what is on this thread's current stream of the device now. A second call of either is an
  // InvalidArgument.
  void complete() const;
  void fail(const std::exception_ptr& error) const;

 private:
  struct Source;
  std::shared_ptr<Source> source_;
};

}  // namespace lockstep
