// One host thread at a time: what makes a recording the same in every run. A thread that waits for another gives its
// turn to the next, in the order in which they joined, whose condition holds. Only while something is recorded. Private
// to the library.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

class Turns {
 public:
  // A thread that takes part.
  class Thread {
   public:
    explicit Thread(std::uint32_t number) : number_(number) {}
    std::uint32_t number() const { return number_; }

   private:
    friend class Turns;
    const std::uint32_t number_;
    std::condition_variable granted_;
    // What it waits for; null: its turn alone. Read while `waiting_` by whoever has the turn.
    const std::function<bool()>* ready_ = nullptr;
    Deadline deadline_ = Deadline::after(Milliseconds::max());
    bool waiting_ = true, in_time_ = true, gone_ = false;  // from the start: its place is kept
    int system_id_ = 0;                                    // the kernel's, once it has come
  };

  // A place in the order for a thread that is about to start; whoever starts it calls this.
  Thread& expect();
  // By the thread itself, first: returns when it has the turn.
  void join(Thread& self);
  // By the thread, last.
  void leave(Thread& self) noexcept;
  // Gives the turn away until `ready` is true, and has it back then; false at the deadline. `ready` may be called by
  // any thread, one at a time, and is not called again once it was true.
  bool yield_until(Thread& self, const std::function<bool()>& ready, Deadline deadline);
  // Before a thread does what the order matters for: whoever has lost the turn waits for it.
  void need(Thread& self) {
    if (holder_.load(std::memory_order_acquire) != &self) [[unlikely]]
      join(self);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  Thread* grant_next(const Thread& self);
  bool wait_granted(Lock& lock, Thread& self);
  bool holder_sleeps() const;
  void grant(Thread& to, bool in_time);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::atomic<Thread*> holder_{nullptr};
  std::size_t last_ = 0;              // the number of the last that was granted the turn
  std::atomic<bool> looking_{false};  // the holder looks for the next
};

}  // namespace lockstep::detail
