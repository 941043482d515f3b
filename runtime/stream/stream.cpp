#include "lockstep/runtime/stream/stream.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/record/recorder.h"
#include "lockstep/runtime/retained.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/stream_pool.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/stream/watchdog.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep {

namespace {

using detail::StreamBody;
using detail::StreamPool;

thread_local StreamScope* innermost_scope = nullptr;

// In traces and reports.
void name_stream(const StreamBody& stream, const char* label) {
  trace::name_track(stream.handle, label);
  if (stream.checked) detail::OrderChecker::active()->label_stream(stream.handle, label);
  if (detail::Recorder* const recorder = detail::Recorder::active();
      recorder && stream.device.type() == DeviceType::host)
    recorder->name_stream(stream.handle, label);
}

// Streams that Lockstep makes itself stay in use for ever: work may be on them when the process ends.
struct StreamTable {
  const char* label;
  detail::PerDevice<std::atomic<StreamBody*>> streams;
  std::mutex mutex;

  StreamBody& at(Device device) {
    std::atomic<StreamBody*>& slot = streams[device];
    StreamBody* stream = slot.load(std::memory_order_acquire);
    return stream ? *stream : make(device, slot);
  }

  [[gnu::noinline, gnu::cold]] StreamBody& make(Device device, std::atomic<StreamBody*>& slot) {
    std::lock_guard lock(mutex);
    StreamBody* stream = slot.load(std::memory_order_acquire);
    if (!stream) {
      stream = &StreamPool::make(device, StreamPriority::normal);
      name_stream(*stream, label);
      slot.store(stream, std::memory_order_release);
    }
    return *stream;
  }
};

static_assert(std::is_trivially_destructible_v<StreamTable>);
constinit StreamTable default_streams{.label = "default", .streams = {}, .mutex = {}};
constinit StreamTable copy_streams{.label = "copies", .streams = {}, .mutex = {}};
constinit StreamTable copy_out_streams{.label = "copies out", .streams = {}, .mutex = {}};

// Bodies of other libraries' streams, for ever: memory that was allocated on one may be in the cache.
struct ForeignStreams {
  std::mutex mutex;
  std::map<std::pair<Device, void*>, detail::StreamState*> known;

  static ForeignStreams& all() {
    static ForeignStreams* const made = new ForeignStreams;
    return *made;
  }
};

struct EventPool {
  std::mutex mutex;
  std::vector<EventHandle> free;
};

EventPool& event_pool(Device device) {
  static constinit detail::PerDevice<EventPool> pools;
  return pools[device];
}

}  // namespace

namespace detail {

EventHandle take_event(Device device) {
  EventPool& pool = event_pool(device);
  {
    std::lock_guard lock(pool.mutex);
    if (!pool.free.empty()) {
      EventHandle event = pool.free.back();
      pool.free.pop_back();
      return event;
    }
  }
  return backend(device).create_event(device.index(), false);
}

void give_event(Device device, EventHandle event) noexcept {
  if (!event) return;
  try {
    EventPool& pool = event_pool(device);
    std::lock_guard lock(pool.mutex);
    pool.free.push_back(event);
  } catch (...) {
    backend(device).destroy_event(event);
  }
}

void settle(Backend& backend, Device device, StreamHandle stream) noexcept {
  if (properties(device).synchronous) return;
  const Deadline deadline = Deadline::after(kDefaultTimeout);
  int errors = 0;
  while (!backend.is_lost(device.index()) && !deadline.passed()) {
    if (backend.abandoned()) return;
    try {
      if (backend.query_stream(stream)) {
        if (OrderChecker* checker = OrderChecker::active()) [[unlikely]]
          checker->waited_for(stream);
        return;
      }
      errors = 0;
    } catch (...) {
      // The error that brings us here is the one to be told. A stream that recovers throws when it has run everything.
      if (backend.recovers() || ++errors == kMostErrorsInARow) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Stream copies_of(const Stream& stream, CopyDirection direction) {
  const Device device = stream.device();
  StreamTable& of_devices = direction == CopyDirection::in ? copy_streams : copy_out_streams;
  if (stream == default_stream(device)) return of_devices.at(device);
  std::atomic<StreamBody*>& slot = state_of(stream).copies[static_cast<int>(direction)];
  if (StreamBody* const found = slot.load(std::memory_order_acquire)) [[likely]]
    return *found;
  // A stream belongs to one thread at a time, but the source of a copy is asked by whoever reads it. Making one may
  // have to wait for the device, so not under a lock. Not one of the pool: `stream` may lie there itself, with a graph
  // that still works on it, and so may one that has it for its copies.
  StreamState& made = StreamPool::make(device, stream.priority());
  StreamBody* first = nullptr;
  if (!slot.compare_exchange_strong(first, &made, std::memory_order_acq_rel)) {
    StreamPool::of(device).give(made);
    return *first;
  }
  name_stream(made, of_devices.label);
  return made;
}

Stream lane_copies_of(const Stream& stream, std::size_t lane) {
  Stream copies = copies_of(stream);
  while (lane-- > 0) copies = copies_of(copies);
  return copies;
}

Retained retained_streams(Device device) {
  Retained all;
  for (StreamTable* table : {&default_streams, &copy_streams, &copy_out_streams}) {
    all.streams += count_with_copies(table->streams[device].load(std::memory_order_acquire));
  }
  all.streams += StreamPool::of(device).streams();
  {
    ForeignStreams& foreign = ForeignStreams::all();
    std::lock_guard lock(foreign.mutex);
    for (const auto& [native, stream] : foreign.known)  // they are others', but not those that carry their copies
      if (native.first == device && stream) all.streams += count_with_copies(stream) - 1;
  }
  EventPool& pool = event_pool(device);
  std::lock_guard lock(pool.mutex);
  all.events = static_cast<int>(pool.free.size());
  return all;
}

EventHandle mark(const StreamState& stream) {
  EventHandle event = take_event(stream.device);
  try {
    LOCKSTEP_EDGE(stream.backend->record_event(event, stream.handle));
  } catch (...) {
    give_event(stream.device, event);
    throw;
  }
  return event;
}

bool is_shared(const Stream& stream) {
  for (StreamTable* table : {&default_streams, &copy_streams, &copy_out_streams}) {
    if (table->streams[stream.device()].load(std::memory_order_acquire) == &stream.body()) return true;
  }
  constexpr std::uintptr_t kLastDefault = 2;  // of CUDA's: none, legacy, per thread
  return state_of(stream).foreign &&
         reinterpret_cast<std::uintptr_t>(stream.backend().native_stream(stream.handle())) <= kLastDefault;
}

void wait_for_handle(Device device, EventHandle event, Deadline deadline) {
  if (!event) return;
  // Collectives that fail on a device are found out between two looks.
  constexpr Milliseconds kSlice{10};
  Backend& of_device = backend(device);
  if (current_capture && of_device.captured(event)) [[unlikely]]
    current_capture->refuse_wait("wait");
  for (bool in_time = false; !in_time;) {
    const bool watched = anything_watched();
    const bool sliced = watched && deadline.time() > Clock::now() + kSlice;
    const Deadline until = sliced ? Deadline::after(kSlice) : deadline;
    in_time = true;
    const bool over = of_device.abandoned();
    LOCKSTEP_EDGE(in_time = of_device.wait_event(event, over ? Deadline::after(Milliseconds(0)) : until));
    if (!in_time && over) fail_without_threads("wait");
    if (watched) [[unlikely]] {
      if (!in_time) poll_in_flight();
      tell_in_flight(device);
    }
    if (in_time) return;
    if (!sliced) break;
  }
  throw TimeoutError(cat("[wait] expected the work on ", device, " to finish before the deadline, got none"));
}

}  // namespace detail

Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), device_(other.device_) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    detail::give_event(device_, handle_);
    handle_ = std::exchange(other.handle_, nullptr);
    device_ = other.device_;
  }
  return *this;
}

Event::~Event() { detail::give_event(device_, handle_); }

void Event::record(const Stream& stream) try {
  if (!handle_ || device_ != stream.device()) {
    EventHandle fresh = detail::take_event(stream.device());
    detail::give_event(device_, handle_);
    handle_ = fresh;
    device_ = stream.device();
  }
  LOCKSTEP_EDGE(stream.backend().record_event(handle_, stream.handle()));
} catch (...) {
  if (!stream.backend().recovers()) detail::settle(stream.backend(), stream.device(), stream.handle());
  throw;
}

bool Event::query() const {
  if (!handle_) return true;
  Backend& of_device = backend(device_);
  if (detail::current_capture && of_device.captured(handle_)) [[unlikely]]
    detail::current_capture->refuse_wait("query");
  bool done = true;
  LOCKSTEP_EDGE(done = of_device.query_event(handle_));
  if (!done) return false;
  // The wait does not block; it throws what the work threw.
  LOCKSTEP_EDGE(done = of_device.wait_event(handle_, Deadline::after(Milliseconds(0))));
  return done;
}

Event::Progress Event::progress() const {
  if (!handle_) return Progress::done;
  Backend& of_device = backend(device_);
  bool done = true;
  LOCKSTEP_EDGE(done = of_device.query_event(handle_));
  if (!done) return Progress::pending;
  return of_device.event_failed(handle_) ? Progress::failed : Progress::done;
}

Stream::Stream(Device device, StreamPriority priority) {
  detail::StreamState& stream = StreamPool::take_or_make(device, priority);
  stream.holders.store(1, std::memory_order_relaxed);
  body_ = &stream;
  held_ = true;
}

Stream Stream::foreign(Device device, void* native) {
  Backend& of_device = lockstep::backend(device);
  ordinal(device);  // throws where there is no such device
  ForeignStreams& all = ForeignStreams::all();
  std::lock_guard lock(all.mutex);
  detail::StreamState*& stream = all.known[{device, native}];
  if (!stream) {
    stream = &StreamPool::make(device, of_device.adopt_stream(device.index(), native));
    stream->foreign = true;
  }
  if (stream->holders.fetch_add(1, std::memory_order_relaxed) == 0) detail::resume_stream(*stream);
  Stream found(*stream);
  found.held_ = true;
  return found;
}

void Stream::hold() const noexcept { detail::state_of(*body_).holders.fetch_add(1, std::memory_order_relaxed); }

void Stream::give_back() const noexcept {
  detail::StreamState& stream = detail::state_of(*body_);
  if (!stream.foreign) {
    if (stream.holders.fetch_sub(1, std::memory_order_acq_rel) == 1) StreamPool::of(stream.device).give(stream);
    return;
  }
  std::lock_guard lock(ForeignStreams::all().mutex);  // foreign() may hand it out at the same time
  if (stream.holders.fetch_sub(1, std::memory_order_acq_rel) == 1) detail::suspend_stream(stream);
}

void Stream::wait(const Event& event) const {
  if (!event.recorded()) return;
  if (detail::current_capture && detail::current_capture->waits(*this, event)) [[unlikely]]
    return;
  if (event.device().type() == device().type()) {
    LOCKSTEP_EDGE(backend().stream_wait_event(handle(), event.handle()));
  } else {
    // Two kinds of device know nothing of each other: the host stands between them.
    LOCKSTEP_EDGE(lockstep::wait(event, Deadline::after(kDefaultTimeout)));
  }
}

void Stream::wait_for(const Stream& other) const {
  if (other == *this) return;
  Event event;
  LOCKSTEP_EDGE(event.record(other));
  LOCKSTEP_EDGE(wait(event));
}

Stream default_stream(Device device) { return default_streams.at(device); }

Stream copy_stream(Device device) { return copy_streams.at(device); }

Stream current_stream(Device device) {
  for (StreamScope* scope = innermost_scope; scope; scope = scope->outer_) {
    if (scope->device_ == device) return scope->stream_;
  }
  return default_stream(device);
}

StreamScope::StreamScope(const Stream& stream)
    : stream_(stream.body()), outer_(innermost_scope), device_(stream.device()) {
  LOCKSTEP_EDGE(innermost_scope = this);
}

StreamScope::~StreamScope() { innermost_scope = outer_; }

void wait(const Event& event, Deadline deadline) {
  LOCKSTEP_EDGE(detail::wait_for_handle(event.device(), event.handle(), deadline));
}

void synchronize(const Stream& stream, Milliseconds timeout) {
  if (detail::current_capture && detail::current_capture->records(stream)) [[unlikely]]
    detail::current_capture->refuse_wait("synchronize");
  Event event;
  LOCKSTEP_EDGE(event.record(stream));
  LOCKSTEP_EDGE(wait(event, Deadline::after(timeout)));
}

void synchronize(Device device, Milliseconds timeout) {
  if (detail::current_capture && !device.is_cpu()) [[unlikely]]
    detail::current_capture->refuse_wait("synchronize");
  LOCKSTEP_EDGE(detail::synchronize_streams(device, Deadline::after(timeout)));
}

}  // namespace lockstep
