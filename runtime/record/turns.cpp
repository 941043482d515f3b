#include "lockstep/runtime/record/turns.h"

#include <unistd.h>

#include <cstdio>
#include <thread>

#include "lockstep/runtime/library_threads.h"

namespace lockstep::detail {
namespace {

constexpr std::chrono::microseconds kBetweenLooks{100};
// A holder that sleeps elsewhere, such as in a join of its own, loses the turn to who needs nothing else, after two
// looks. The others are woken when it is their turn, and look once in a while whether the process ends.
constexpr std::chrono::milliseconds kBetweenChecks{10}, kBetweenGlances{500};

bool nobody_waits_any_more() { return library_threads.load(std::memory_order_acquire) != Threads::run; }

// Whether the kernel has the thread asleep (proc_pid_stat(5)).
bool sleeps(int thread) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return true;  // it is gone
  char text[256] = {};
  const std::size_t bytes = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const std::string_view all(text, bytes);
  const auto name_ends = all.rfind(')');
  return name_ends != std::string_view::npos && name_ends + 2 < all.size() && all[name_ends + 2] == 'S';
}

}  // namespace

Turns::Thread& Turns::expect() {
  const std::lock_guard lock(mutex_);
  return *threads_.emplace_back(std::make_unique<Thread>(static_cast<std::uint32_t>(threads_.size())));
}

void Turns::grant(Thread& to, bool in_time) {
  to.waiting_ = false;
  to.in_time_ = in_time;
  to.ready_ = nullptr;
  last_ = to.number_;
  holder_.store(&to, std::memory_order_release);
  to.granted_.notify_one();
}

// By the holder, which alone grants: what others wait for stays valid meanwhile. Null: nobody can go on.
Turns::Thread* Turns::grant_next(const Thread& self) {
  std::vector<Thread*> waiting;
  {
    const Lock lock(mutex_);
    for (std::size_t i = 1; i <= threads_.size(); ++i) {
      Thread& each = *threads_[(last_ + i) % threads_.size()];
      if (each.waiting_ && !each.gone_) waiting.push_back(&each);
    }
  }
  for (Thread* each : waiting) {
    const bool ready = !each->ready_ || (*each->ready_)();
    if (!ready && !each->deadline_.passed()) continue;
    const Lock lock(mutex_);
    if (holder_.load(std::memory_order_relaxed) == &self) grant(*each, ready);
    return each;
  }
  return nullptr;
}

bool Turns::holder_sleeps() const {
  const Thread* holder = holder_.load(std::memory_order_acquire);
  if (!holder || looking_.load(std::memory_order_acquire)) return false;
  return holder->gone_ || (holder->system_id_ != 0 && sleeps(holder->system_id_));
}

// With `waiting_` set: until another has granted the turn, or this thread has found itself to be the next.
bool Turns::wait_granted(Lock& lock, Thread& self) {
  const Thread* suspect = nullptr;
  while (self.waiting_) {
    if (nobody_waits_any_more()) {  // the process ends: everybody looks for himself
      lock.unlock();
      const bool ready = !self.ready_ || (*self.ready_)();
      if (!ready && !self.deadline_.passed()) std::this_thread::sleep_for(kBetweenLooks);
      lock.lock();
      if (ready || self.deadline_.passed()) {
        self.waiting_ = false;
        return ready;
      }
      continue;
    }
    Thread* const holder = holder_.load(std::memory_order_relaxed);
    if (!holder || holder == &self) {
      holder_.store(&self, std::memory_order_release);
      looking_.store(true, std::memory_order_release);
      lock.unlock();
      Thread* const next = grant_next(self);
      if (!next) std::this_thread::sleep_for(kBetweenLooks);  // for what threads do that do not take part
      lock.lock();
      looking_.store(false, std::memory_order_release);
      continue;
    }
    const bool needs_no_more = self.ready_ == nullptr;
    self.granted_.wait_for(lock, needs_no_more ? kBetweenChecks : kBetweenGlances);
    if (!self.waiting_ || !needs_no_more) continue;
    const Thread* now = holder_.load(std::memory_order_relaxed);
    const bool asleep = now == holder && holder_sleeps();
    if (asleep && suspect == now) holder_.store(nullptr, std::memory_order_release);
    suspect = asleep ? now : nullptr;
  }
  return self.in_time_;
}

void Turns::join(Thread& self) {
  Lock lock(mutex_);
  self.system_id_ = static_cast<int>(::gettid());
  if (holder_.load(std::memory_order_relaxed) == &self) return;  // before it had come
  self.ready_ = nullptr;
  self.deadline_ = Deadline::after(Milliseconds::max());
  self.waiting_ = true;
  wait_granted(lock, self);
}

bool Turns::yield_until(Thread& self, const std::function<bool()>& ready, Deadline deadline) {
  Lock lock(mutex_);
  self.system_id_ = static_cast<int>(::gettid());
  self.ready_ = &ready;
  self.deadline_ = deadline;
  self.waiting_ = true;
  return wait_granted(lock, self);
}

void Turns::leave(Thread& self) noexcept {
  const Lock lock(mutex_);
  self.gone_ = true;
  Thread* expected = &self;
  holder_.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel);
  for (const auto& each : threads_)
    if (each->waiting_) each->granted_.notify_one();
}

}  // namespace lockstep::detail
