// Streams and events: ordinary move-only values above the backend seam.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/backend.h"

namespace lockstep {

class Stream;
namespace detail {
struct StreamState;
}

// A point in a stream's work that other streams and the host can wait for. Created on first record.
class LOCKSTEP_API Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  // Marks the work enqueued on `stream` so far. Records again at will; earlier waits keep what they waited for.
  void record(Stream& stream);
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

// An in-order queue of work on one device. Belongs to one thread at a time.
class LOCKSTEP_API Stream {
 public:
  // Takes one that is idle from the device's pool, else makes one.
  explicit Stream(Device device);
  Stream& operator=(const Stream&) = delete;
  ~Stream();  // waits for nothing: what was enqueued runs, and the pool has the stream back

  // The stream itself, which outlives this object: what blocks, graph nodes and current_stream() refer to.
  Stream& lasting() const { return *lasting_; }
  friend bool operator==(const Stream& a, const Stream& b) { return a.lasting_ == b.lasting_; }

  Device device() const { return device_; }
  StreamHandle handle() const { return handle_; }
  Backend& backend() const { return *backend_; }
  // Work is finished when the enqueuing call returns.
  bool synchronous() const { return synchronous_; }
  // What is enqueued must be declared (see runtime/order/order.h).
  bool checked() const { return checked_; }

  // Later work of this stream runs after what `event` marked. Does not block the host.
  void wait(const Event& event);
  // Later work of this stream runs after what is on `other` now. Nothing to do for the stream itself.
  void wait_for(Stream& other);
  void enqueue(UniqueFunction task) { backend_->enqueue(handle_, std::move(task)); }
  bool query() const { return backend_->query_stream(handle_); }

  // What the allocator knows about the stream; for Lockstep's own use.
  detail::StreamState& state() const { return *state_; }

 private:
  friend struct StreamPool;
  struct Lasting {};
  Stream(Device device, Lasting);
  Stream(const Stream&) = default;

  Device device_;
  bool synchronous_, checked_;
  Backend* backend_;
  StreamHandle handle_;
  detail::StreamState* state_;
  Stream* lasting_;
};

// The stream that work of this thread on `device` goes to: the innermost StreamScope, else the device's default stream.
LOCKSTEP_API Stream& current_stream(Device device);
LOCKSTEP_API Stream& default_stream(Device device);
// The device's stream for copies into it.
LOCKSTEP_API Stream& copy_stream(Device device);

// Makes `stream` current for its device in this thread until the scope ends.
class LOCKSTEP_API StreamScope {
 public:
  explicit StreamScope(Stream& stream);
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  ~StreamScope();

 private:
  friend Stream& current_stream(Device device);
  Stream& stream_;
  StreamScope* outer_;  // scopes of one thread nest
  Device device_;
};

// The one place where a host thread waits for a device. Throws TimeoutError at the deadline and DeviceError when the
// work failed.
LOCKSTEP_API void wait(const Event& event, Deadline deadline);
// Waits for all work enqueued on the stream, or on every stream that Lockstep has on the device.
LOCKSTEP_API void synchronize(Stream& stream, Milliseconds timeout = kDefaultTimeout);
LOCKSTEP_API void synchronize(Device device, Milliseconds timeout = kDefaultTimeout);

}  // namespace lockstep
