// The resource seam: what a kind of device must be able to do. One object per device type, made on first use, never
// destroyed, thread-safe. Streams, events and memory are opaque here; the classes that people use (Stream, Event) and
// everything else (caching allocator, copy policy, device threads) are written once, above this seam.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/unique_function.h"

namespace lockstep {

using StreamHandle = struct OpaqueStream*;
using EventHandle = struct OpaqueEvent*;
using GraphHandle = struct OpaqueGraph*;

// Of a stream among those of its device: where work of several could run, that of `high` is to come first.
enum class StreamPriority : std::uint8_t { normal, high };
inline constexpr int kStreamPriorities = 2;

// One contiguous copy. Devices are logical; `cpu` names host memory.
struct CopyArgs {
  void* destination;
  Device destination_device;
  const void* source;
  Device source_device;
  std::size_t bytes;
};

// The way that bytes take from one device to another of its kind, as the machine's description has it: nothing of it is
// measured, so what is chosen by it is chosen again in every run. All defaults: the same way between any two.
struct DeviceLink {
  double speed = 1;     // against the kind's other pairs; 0: there is none but through host memory
  int distance = 1;     // how many links are passed: the shorter of two ways is in fewer others' way
  bool own = false;     // a line: copies over it slow none between others down, nor others of its two
  bool shared = false;  // copies both ways at the same time slow each other down, as in a slot of PCIe
  friend bool operator==(const DeviceLink&, const DeviceLink&) = default;
};

class LOCKSTEP_API Backend {
 public:
  virtual ~Backend() = default;

  // Identity. `index` is Device::index() throughout and is valid (the callers check).
  virtual DeviceType type() const noexcept = 0;
  virtual int device_count() const noexcept = 0;
  virtual const DeviceProperties& properties(int index) const = 0;
  // The hardware behind the device, by a name that is the same in every process of the machine: devices of one name
  // share it, and ranks on them its communicators. Empty: nobody else is on it. Does not block; may throw DeviceError.
  virtual std::string hardware(int /*index*/) const { return {}; }

  // Makes the device current for the calling thread (device threads call it once).
  virtual void bind_thread(int index) = 0;

  // Raw memory, 256-byte aligned. Null when there is none left; the allocator above turns that into OutOfMemory.
  virtual void* allocate(int index, std::size_t bytes) = 0;
  virtual void free(int index, void* memory) noexcept = 0;
  // Host memory that the device can copy from and to asynchronously. Null when there is none left.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(void* memory) noexcept = 0;
  // True for host memory that the device can copy from and to only while the host waits: it goes through pinned memory.
  virtual bool pageable(const void* /*memory*/) const { return false; }

  // A stream runs what is enqueued on it in order. The first error of its work sticks to it, travels through events to
  // the streams that wait, and surfaces where the host waits or asks whether a stream is done. On host devices the
  // stream works again after that, for what is enqueued from then on; on others the device may be lost.
  // A device that knows no priorities ignores them: they change when work runs, and nothing else.
  virtual StreamHandle create_stream(int index, StreamPriority priority) = 0;
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  // A stream of the vendor's that somebody else made and destroys: to be enqueued on as on the backend's own. Throws
  // NotSupported where there is no such thing.
  virtual StreamHandle adopt_stream(int index, void* native);
  virtual bool query_stream(StreamHandle stream) = 0;  // true when all enqueued work has finished
  // As query_stream, for a stream that nobody holds and that is to have a new owner. What its work came after is
  // forgotten, and an error that others have still to be told of stays for them.
  virtual bool renew_stream(StreamHandle stream) { return query_stream(stream); }
  virtual void* native_stream(StreamHandle stream) = 0;

  // Events. Waiting for one that was never recorded returns at once; re-recording does not disturb earlier waits.
  virtual EventHandle create_event(int index, bool timing) = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record_event(EventHandle event, StreamHandle stream) = 0;
  virtual void stream_wait_event(StreamHandle stream, EventHandle event) = 0;
  // True when the marked work has finished, or failed: that is for wait_event to say.
  virtual bool query_event(EventHandle event) = 0;
  // True when the marked work has failed; asking is not being told: the error still surfaces elsewhere. Needed where
  // streams work again after an error.
  virtual bool event_failed(EventHandle) { return false; }
  // Blocks the calling thread until the event or the deadline; false at the deadline. Throws what the work threw.
  virtual bool wait_event(EventHandle event, Deadline deadline) = 0;
  virtual double elapsed_milliseconds(EventHandle begin, EventHandle end) = 0;

  // True when an error has ruined the device for the process: nothing runs on it any more, and every call throws.
  virtual bool is_lost(int /*index*/) const noexcept { return false; }
  // True when a stream works again after its error has surfaced.
  virtual bool recovers() const noexcept { return false; }
  // True when what is on the streams will never run: the library's threads have ended.
  virtual bool abandoned() const noexcept { return false; }
  // True when a trace learns by host tasks, before and after a piece of work, when it began and ended on the device.
  // False when the backend reports that itself (runtime/trace/trace.h).
  virtual bool traced_by_tasks() const noexcept { return false; }

  // Copies and fills, ordered by `stream` alone: the edges to other streams are added by runtime/copy.
  virtual void copy(const CopyArgs& args, StreamHandle stream) = 0;
  virtual void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) = 0;

  // Direct access of device `from` to the memory of device `to`.
  virtual bool can_access_peer(int from, int to) const = 0;
  virtual void enable_peer_access(int from, int to) = 0;
  // Between two devices that differ. The same answer for as long as the process lives (runtime/topology asks once).
  // Does not block; may throw DeviceError.
  virtual DeviceLink link(int /*from*/, int /*to*/) const { return {}; }

  // Graphs. From begin_capture to end_capture what the calling thread enqueues on the stream, and on streams that wait
  // for its events meanwhile, is recorded and does not run. end_capture ends it whatever happens; it throws when the
  // capture was invalidated, and gives null, and throws nothing, when it is to be discarded. Tasks run at each launch.
  virtual void begin_capture(StreamHandle stream);  // throws NotSupported where there is no such thing
  virtual GraphHandle end_capture(StreamHandle /*stream*/, bool /*discard*/) { return nullptr; }
  virtual bool captured(EventHandle) const noexcept { return false; }  // in the calling thread's capture
  // Runs what was recorded, after what is on the stream and after earlier launches.
  virtual void launch_graph(GraphHandle /*graph*/, StreamHandle /*stream*/) {}
  virtual void destroy_graph(GraphHandle /*graph*/) noexcept {}  // which does not run any more

  // Runs `task` on the host in stream order. It must not call back into the backend.
  virtual void enqueue(StreamHandle stream, UniqueFunction task) = 0;
};

// The backend of a device type; throws NotSupported when this build or machine has none.
LOCKSTEP_API Backend& backend(DeviceType type);
inline Backend& backend(Device device) { return backend(device.type()); }

namespace detail {
// Puts a backend (which must live for ever) in the place of its device type. Must be called before anything uses a
// device; throws Error when it is too late. For tests that bring devices of their own.
LOCKSTEP_API void install_backend(Backend& backend);
}  // namespace detail

}  // namespace lockstep
