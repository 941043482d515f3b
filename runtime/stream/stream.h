// Streams and events, above the backend seam.
#pragma once

#include <cstdint>
#include <utility>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/backend.h"

namespace lockstep {

class Stream;

namespace detail {
// What stands behind a Stream. Never destroyed; the rest of it is in stream_state.h.
struct StreamBody {
  Device device;
  bool synchronous = false, checked = false;
  Backend* backend = nullptr;
  StreamHandle handle = nullptr;
  StreamPriority priority = StreamPriority::normal;
};
}  // namespace detail

// A point in a stream's work that other streams and the host can wait for. Created on first record.
class LOCKSTEP_API Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  // Marks the work enqueued on `stream` so far. Records again at will; earlier waits keep what they waited for.
  void record(const Stream& stream);
  // True when the marked work has finished, or nothing was ever recorded.
  bool query() const;

  // As query(), but does not throw: what the work threw still surfaces at the next wait for it. For whoever keeps what
  // the work was to write.
  enum class Progress : std::uint8_t { pending, done, failed };
  Progress progress() const;

  bool recorded() const { return handle_ != nullptr; }
  EventHandle handle() const { return handle_; }
  Device device() const { return device_; }

 private:
  EventHandle handle_ = nullptr;
  Device device_;
};

// An in-order queue of work on one device: a handle, to be copied at will, on a body that lasts as long as the process.
// Belongs to one thread at a time.
class LOCKSTEP_API Stream {
 public:
  Stream() = default;  // none; only to be assigned to, compared and asked whether it is one
  // Takes a stream of that priority that is idle from the device's pool, else makes one. The pool has it back when the
  // last copy of this handle is gone, which waits for nothing: what was enqueued runs. On CUDA devices the kernels of a
  // stream of high priority come before those of others that have not begun; host devices have one priority.
  explicit Stream(Device device, StreamPriority priority = StreamPriority::normal);
  // A stream of another library on the same device: a cudaStream_t of the GPU of a CUDA device (null: CUDA's default
  // stream). Its owner keeps it until the last copy of the handle is gone, memory that was allocated on it is released,
  // and graphs that were recorded on it have run. The same stream gives the same Stream. Throws NotSupported for
  // devices without such streams.
  static Stream foreign(Device device, void* native);
  // What Lockstep refers to a stream by: does not keep it out of the pool.
  Stream(detail::StreamBody& body) : body_(&body) {}  // NOLINT(google-explicit-constructor): a body is a stream

  Stream(const Stream& other) : body_(other.body_), held_(other.held_) {
    if (held_) [[unlikely]]
      hold();
  }
  Stream(Stream&& other) noexcept : body_(other.body_), held_(std::exchange(other.held_, false)) {}
  Stream& operator=(Stream other) noexcept {
    std::swap(body_, other.body_);
    std::swap(held_, other.held_);
    return *this;
  }
  ~Stream() {
    if (held_) [[unlikely]]
      give_back();
  }

  explicit operator bool() const { return body_ != nullptr; }
  friend bool operator==(const Stream& a, const Stream& b) { return a.body_ == b.body_; }

  Device device() const { return body_->device; }
  StreamHandle handle() const { return body_->handle; }
  Backend& backend() const { return *body_->backend; }
  StreamPriority priority() const { return body_->priority; }
  // Work is finished when the enqueuing call returns.
  bool synchronous() const { return body_->synchronous; }
  // What is enqueued must be declared (see runtime/stream/declare.h).
  bool checked() const { return body_->checked; }

  // Later work of this stream runs after what `event` marked. Does not block the host.
  void wait(const Event& event) const;
  // Later work of this stream runs after what is on `other` now. Nothing to do for the stream itself.
  void wait_for(const Stream& other) const;
  void enqueue(UniqueFunction task) const { body_->backend->enqueue(body_->handle, std::move(task)); }
  bool query() const { return body_->backend->query_stream(body_->handle); }

  // For Lockstep's own use.
  detail::StreamBody& body() const { return *body_; }

 private:
  void hold() const noexcept;
  void give_back() const noexcept;

  detail::StreamBody* body_ = nullptr;
  bool held_ = false;  // one of the handles that keep it out of the pool
};

// The stream that work of this thread on `device` goes to: the innermost StreamScope, else the device's default stream.
LOCKSTEP_API Stream current_stream(Device device);
LOCKSTEP_API Stream default_stream(Device device);
// The device's stream for copies into it.
LOCKSTEP_API Stream copy_stream(Device device);

// Makes `stream` current for its device in this thread until the scope ends.
class LOCKSTEP_API StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  ~StreamScope();

 private:
  friend Stream current_stream(Device device);
  detail::StreamBody& stream_;
  StreamScope* outer_;  // scopes of one thread nest
  Device device_;
};

// The one place where a host thread waits for a device. Throws TimeoutError at the deadline and DeviceError when the
// work failed.
LOCKSTEP_API void wait(const Event& event, Deadline deadline);
// Waits for all work enqueued on the stream, or on every stream that Lockstep has on the device.
LOCKSTEP_API void synchronize(const Stream& stream, Milliseconds timeout = kDefaultTimeout);
LOCKSTEP_API void synchronize(Device device, Milliseconds timeout = kDefaultTimeout);

}  // namespace lockstep
