#include "lockstep/runtime/library_threads.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/keep_loaded.h"

namespace lockstep::detail {

std::atomic<Threads> library_threads{Threads::run};

namespace {

// What a product or a convolution takes at most, on a busy machine; the process must end also when one never does.
constexpr Milliseconds kAtExit{10'000};

// How long foreign calls are put off when the main thread ends, which nearly always is the process that ends.
constexpr Milliseconds kPause{100};

std::atomic<bool> begun{false}, exiting{false}, paused{false};
std::atomic<std::uint64_t> generation{0};
std::atomic<pid_t> process{0};

// Calls in progress, in several words so that threads do not fight over one.
struct alignas(64) Inside {
  std::atomic<std::uint32_t> calls{0};
};
constinit std::array<Inside, 16> inside{};
std::atomic<std::uint32_t> threads_seen{0};

thread_local bool service_thread = false;
thread_local bool exits_here = false;
thread_local int locks_held = 0;
thread_local bool rests_next = false;
thread_local std::uint32_t thread_number = 0;

void watch_process();

std::atomic<std::uint32_t>& my_calls() {
  if (thread_number == 0) {
    watch_process();
    thread_number = threads_seen.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  return inside[thread_number % inside.size()].calls;
}

[[noreturn]] void rest() noexcept {
  for (;;) ::pause();
}

void wait_for_foreign_calls() {
  const Deadline deadline = Deadline::after(kAtExit);
  for (const Inside& some : inside)
    while (some.calls.load(std::memory_order_seq_cst) != 0 && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void at_exit() {
  if (::getpid() != process.load(std::memory_order_relaxed)) return;  // cloned by other means than fork()
  exits_here = true;
  if (exiting.exchange(true, std::memory_order_seq_cst)) return;
  Threads running = Threads::run;
  library_threads.compare_exchange_strong(running, Threads::ended, std::memory_order_seq_cst);
  wait_for_foreign_calls();
}

// A device thread that has just told its caller of the end of a task may still hold a lock, which would stay locked in
// the child for ever.
void before_fork() {
  if (!begun.load(std::memory_order_relaxed) || service_thread) return;
  try {
    wait_for_device_threads(Deadline::after(Milliseconds(100)));
  } catch (...) {
    // Without memory for the answer, as if there had been no time.
  }
}

void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  process.store(::getpid(), std::memory_order_relaxed);
  for (Inside& some : inside) some.calls.store(0, std::memory_order_relaxed);
  Threads running = Threads::run;
  if (begun.load(std::memory_order_relaxed)) library_threads.compare_exchange_strong(running, Threads::forked);
}

void watch_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    process.store(::getpid(), std::memory_order_relaxed);
    ::pthread_atfork(before_fork, nullptr, in_child);
    keep_loaded();
    std::atexit(at_exit);
  });
}

// Handlers run in the opposite order of their registration, and so do the destructors of what a foreign library makes
// at its first use: ours must come before theirs. So it is registered again after such uses, which costs a few words
// each time, and when a thread that uses the library ends, which is the first thing that std::exit does.
constexpr int kMostRegistrations = 1000;
constexpr std::uint32_t kFirst = 100, kCounted = 4096;  // calls after which it is
std::atomic<int> registrations{0};
std::atomic<std::uint32_t> foreign_calls{0}, calls_at_registration{0};

void register_again() {
  const std::uint32_t calls = foreign_calls.load(std::memory_order_relaxed);
  const bool nothing_new = calls_at_registration.exchange(calls, std::memory_order_relaxed) == calls;
  if (::getpid() != ::gettid() && (nothing_new || registrations.fetch_add(1) >= kMostRegistrations)) return;
  std::atexit(at_exit);
}

struct ThreadEnd {
  ~ThreadEnd() {
    if (!used || service_thread) return;
    // A call that is being made for the first time may yet register what comes before our handler.
    if (::getpid() == ::gettid()) {
      watch_process();
      paused.store(true, std::memory_order_seq_cst);
      wait_for_foreign_calls();
    }
    register_again();
  }
  bool used = false;
};
thread_local ThreadEnd thread_end;

}  // namespace

void threads_begin() {
  watch_process();
  begun.store(true, std::memory_order_release);
}

void fail_without_threads(const char* op) {
  // An error in a thread that does not exit would reach code that expects the process to go on, or to end otherwise.
  if (exiting.load(std::memory_order_acquire) && !exits_here) {
    if (locks_held == 0) rest();
    rests_next = true;
  }
  if (library_threads.load(std::memory_order_relaxed) == Threads::forked)
    throw Error(cat("[", op,
                    "] expected a process that has the library's threads, got one that was forked after they "
                    "were started; start ranks and workers before the first use of several devices, or exec"));
  throw Error(cat("[", op,
                  "] expected a call before shutdown() and before the process ends, got one after it: the "
                  "library's threads have ended"));
}

RestWithout::RestWithout(std::unique_lock<std::mutex>& lock) noexcept : lock_(lock) { ++locks_held; }

RestWithout::~RestWithout() {
  if (--locks_held > 0 || !rests_next) return;
  if (lock_.owns_lock()) lock_.unlock();
  rest();
}

void check_generation(const char* op, std::uint64_t made) {
  if (made != fork_generation()) [[unlikely]]
    throw Error(cat("[", op,
                    "] expected the process in which it began, got one that was forked off since: the threads "
                    "that it waits for are not here"));
}

void rest_if_ended() noexcept {
  if (library_threads.load(std::memory_order_acquire) == Threads::ended) [[unlikely]]
    rest();
}

void this_is_a_service_thread() noexcept { service_thread = true; }

void notice_exit() noexcept { thread_end.used = true; }

bool process_ends() noexcept { return exiting.load(std::memory_order_acquire); }

std::uint64_t fork_generation() {
  watch_process();
  return generation.load(std::memory_order_relaxed);
}

ForeignCall::ForeignCall() : inside_(&my_calls()) {
  notice_exit();
  for (Clock::time_point begin{};;) {
    inside_->fetch_add(1, std::memory_order_seq_cst);
    const bool over = exiting.load(std::memory_order_seq_cst), wait = paused.load(std::memory_order_seq_cst);
    if (!over && !wait) [[likely]]
      return;
    inside_->fetch_sub(1, std::memory_order_seq_cst);
    if (over) {
      inside_ = nullptr;
      return;
    }
    const Clock::time_point now = Clock::now();
    if (begin == Clock::time_point{}) begin = now;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    if (now - begin > kPause) paused.store(false, std::memory_order_seq_cst);  // the main thread alone has ended
  }
}

ForeignCall::~ForeignCall() {
  if (!inside_) [[unlikely]]
    return;
  // The first ones make most of what there is to destroy.
  if (foreign_calls.load(std::memory_order_relaxed) < kCounted) [[unlikely]] {
    const std::uint32_t calls = foreign_calls.fetch_add(1, std::memory_order_relaxed) + 1;
    if (calls <= kFirst || std::has_single_bit(calls)) register_again();
  }
  inside_->fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace lockstep::detail
