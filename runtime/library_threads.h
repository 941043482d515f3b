// The library's threads as a whole: whether there are any to give work to, and their rest at the end of the process.
// Private to the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

enum class Threads : std::uint8_t {
  run,
  ended,   // by shutdown(), or because the process ends
  forked,  // this is a child of the process that has them
};
LOCKSTEP_API extern std::atomic<Threads> library_threads;

// Throws. In a thread that is not the one that ends the process, once that has begun: does not return (see also
// RestWithout).
[[noreturn]] LOCKSTEP_API void fail_without_threads(const char* op);
// Throws Error when work given to a thread of the library would never be done.
inline void check_threads(const char* op) {
  if (library_threads.load(std::memory_order_relaxed) != Threads::run) [[unlikely]]
    fail_without_threads(op);
}
// While a lock is held that the exit may need: fail_without_threads always throws. Where it would not have returned,
// the end of the outermost of these gives up its lock and does not return.
class RestWithout {
 public:
  explicit RestWithout(std::unique_lock<std::mutex>& lock) noexcept;
  RestWithout(const RestWithout&) = delete;
  RestWithout& operator=(const RestWithout&) = delete;
  ~RestWithout();

 private:
  std::unique_lock<std::mutex>& lock_;
};
// Before the first thread that takes work is started: a fork after that is noticed, and the exit of the process.
void threads_begin();
// By a thread of the library that is about to begin a piece of work: does not return once they have ended. No lock may
// be held.
void rest_if_ended() noexcept;
// Marks the calling thread as one of the library's.
void this_is_a_service_thread() noexcept;
// By a thread of the program that gives work to the library: its exit is noticed before what others destroy then.
void notice_exit() noexcept;

// Until no device thread has anything to do. At the deadline: which one has; else empty.
std::string wait_for_device_threads(Deadline deadline);
// Those that have ended end.
void wake_device_threads() noexcept;

// Once the process has begun to exit. Threads rest where they are then, and may hold a lock of a module.
bool process_ends() noexcept;

// How often this process has been forked off: what is made in one generation must not be waited for in the next. The
// first call begins the count.
std::uint64_t fork_generation();
// Throws Error when `made`, the generation of something with threads, is not this one's.
void check_generation(const char* op, std::uint64_t made);

// Around a call of another library that destroys what it keeps when the process ends, such as code that it has made:
// the exit waits for the calls in progress, and from then on there is to be no other, nor in destructors of statics.
class LOCKSTEP_API ForeignCall {
 public:
  ForeignCall();
  ForeignCall(const ForeignCall&) = delete;
  ForeignCall& operator=(const ForeignCall&) = delete;
  ~ForeignCall();
  explicit operator bool() const { return inside_ != nullptr; }  // whether the call may be made

 private:
  std::atomic<std::uint32_t>* inside_;
};

}  // namespace lockstep::detail
