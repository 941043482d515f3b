// A capture in progress (runtime/graph/graph.h), as those see it whose calls it records or refuses. CUDA's backend has
// the only one, and the graphs (runtime/cuda/capture.cpp). Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {

// What is an argument of a launch elsewhere, and in a graph another one at each replay: kernels read it in device
// memory, and each replay writes it there before.
class Replayed {
 public:
  virtual ~Replayed() = default;
  virtual void captured() noexcept {}  // the capture is over, or has come to nothing; in its thread
  // For the next replay, in the thread that replays. When one throws, it does not take place.
  virtual void write(std::byte* /*to*/) {}
  virtual void replayed(const Stream& /*on*/) noexcept {}  // it is enqueued
  virtual void given_up() noexcept {}                      // after its write(): it does not take place
};

class Capture {
 public:
  virtual ~Capture() = default;
  virtual Device device() const noexcept = 0;
  // What cannot be recorded: throws NotSupported "[call] expected what a capture can record, got …", and so does the
  // end of the capture, whoever catches it.
  [[noreturn]] void refuse(const char* call, const std::string& what) {
    throw_refusal(call, what);
    __builtin_unreachable();
  }
  // A wait of the host.
  [[noreturn]] void refuse_wait(const char* call) {
    throw_refusal(call, "");
    __builtin_unreachable();
  }
  // True when `stream` need not be told of the event: it is not of the capture, and replays come after it.
  virtual bool waits(const Stream& stream, const Event& event) = 0;
  virtual void check_copy(const CopyArgs& args) = 0;
  virtual bool records(const Stream& stream) const = 0;
  virtual bool allocated(const MemoryBlock* block) const = 0;  // inside
  // Device memory for what `value` writes: aligned for any element.
  virtual void* add(std::unique_ptr<Replayed> value, std::size_t bytes) = 0;

  Replayed* storages = nullptr;  // the tensor layer's own among them
  Replayed* draws = nullptr;

 private:
  virtual void throw_refusal(const char* call, const std::string& what) = 0;
};

// The calling thread's; null outside of one.
inline constinit thread_local Capture* current_capture = nullptr;

// The default stream of a device, those for its copies, and CUDA's own default streams: any thread may use them.
bool is_shared(const Stream& stream);

// Memory for work on `stream` comes from a pool of its own from now on, which is given; and again from its device's
// cache. What is left in a pool when nothing that was recorded with it runs any more goes to the cache.
StreamState* redirect_memory(StreamState& stream);
void restore_memory(StreamState& stream) noexcept;
void retire_memory(StreamState* pool) noexcept;

}  // namespace lockstep::detail
