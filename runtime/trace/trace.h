// What ran on which stream, and when: spans of kernels, copies, fills and host scopes, written as a Chrome trace (for
// chrome://tracing or ui.perfetto.dev). Off until asked for, and then one relaxed load per operation.
//
//   LOCKSTEP_TRACE=step.json ./train        # from the first use of a device to the end of the process
//
// Backends whose work runs on its own report when it begins and ends on the device (the host modes async and strict;
// CUDA devices by host functions before and after it); for others a span is the call that does the work.
//
// With CUDA devices the spans that a host thread opens are NVTX ranges of that thread too (domain "lockstep"), for
// Nsight Systems and its like; LOCKSTEP_NVTX=1 makes them without recording anything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep::trace {

enum class Kind : std::uint8_t { kernel, copy, fill, task, host };

// What is known of a piece of work when it is enqueued. `name` must live for ever.
struct Work {
  const char* name = nullptr;
  Kind kind = Kind::task;
  std::size_t bytes = 0;  // of copies and fills
  Device source;          // of copies
};

struct Span {
  Work work;
  Device device;
  std::string track;  // the stream, or the host thread
  // Places in the one order of all that is recorded: what is smaller happened before. 0: not yet.
  std::uint64_t enqueued = 0, began = 0, ended = 0;
  std::int64_t enqueued_nanoseconds = 0, began_nanoseconds = 0, ended_nanoseconds = 0;  // since start()
};

// Forgets what was recorded and records from now on, at most `most` spans; what comes after those is counted.
LOCKSTEP_API void start(std::size_t most = std::size_t{1} << 20);
// Records nothing that is enqueued from now on; the ends of what was enqueued before still arrive.
LOCKSTEP_API void stop();
// What was recorded so far, in the order in which it was enqueued.
LOCKSTEP_API std::vector<Span> spans();
LOCKSTEP_API std::uint64_t dropped();  // since start()
// Writes it as trace-event JSON: a process per device, a thread per stream. Throws Error when it cannot.
LOCKSTEP_API void write(const std::string& path);

// ---- for backends and for code of one's own

namespace detail {
inline constinit std::atomic<bool> on{false};
}
inline bool active() { return detail::on.load(std::memory_order_relaxed); }

// Names a recorded span; 0 when nothing is recorded.
using Token = std::uint64_t;
// Work that is enqueued on a stream (any address that stands for it). Without a name it has that of the innermost
// WorkScope of the thread (runtime/stream/work_scope.h).
LOCKSTEP_API Token enqueued(const void* stream, Device device, Work work = {});
LOCKSTEP_API void began(Token token);
LOCKSTEP_API void ended(Token token);
// What the track of the stream is called.
LOCKSTEP_API void name_track(const void* stream, const char* name);

// A span of the calling thread: `trace::Scope scope("load batch");`
class Scope {
 public:
  explicit Scope(const char* name) : token_(active() ? begin(name) : 0) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    if (token_ != 0) [[unlikely]]
      ended(token_);
  }

 private:
  LOCKSTEP_API static Token begin(const char* name);
  Token token_;
};

}  // namespace lockstep::trace
