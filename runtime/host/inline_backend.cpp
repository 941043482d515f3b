#include "lockstep/runtime/host/inline_backend.h"

#include <atomic>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep::detail {
namespace {

struct InlineStream {
  int index;
};

// What an event marks has happened before it is recorded. The release and acquire are for the threads: whoever waits
// sees what the recording thread did before, as on a device that runs on its own.
struct InlineEvent {
  bool timing;
  std::atomic<bool> recorded{false};
  std::atomic<Clock::rep> time{0};
};

InlineEvent& as_inline_event(EventHandle handle) { return *reinterpret_cast<InlineEvent*>(handle); }

// Of work that is done in the call that enqueues it.
class TraceSpan {
 public:
  TraceSpan(const Backend& backend, StreamHandle stream, const trace::Work& work) {
    if (trace::active()) [[unlikely]]
      begin(backend, stream, work);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (token_ != 0) [[unlikely]]
      trace::ended(token_);
  }

 private:
  [[gnu::noinline, gnu::cold]] void begin(const Backend& backend, StreamHandle stream, const trace::Work& work) {
    const int index = reinterpret_cast<const InlineStream*>(stream)->index;
    token_ = trace::enqueued(stream, backend.type() == DeviceType::cpu ? Device::cpu() : Device::host(index), work);
    trace::began(token_);
  }
  trace::Token token_ = 0;
};

}  // namespace

StreamHandle InlineBackend::create_stream(int index, StreamPriority) {
  return reinterpret_cast<StreamHandle>(new InlineStream{index});
}

void InlineBackend::destroy_stream(StreamHandle stream) noexcept { delete reinterpret_cast<InlineStream*>(stream); }

EventHandle InlineBackend::create_event(int, bool timing) {
  return reinterpret_cast<EventHandle>(new InlineEvent{.timing = timing});
}

void InlineBackend::destroy_event(EventHandle event) noexcept { delete &as_inline_event(event); }

void InlineBackend::record_event(EventHandle handle, StreamHandle) {
  InlineEvent& event = as_inline_event(handle);
  if (event.timing) event.time.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  event.recorded.store(true, std::memory_order_release);
}

void InlineBackend::stream_wait_event(StreamHandle, EventHandle event) {
  (void)as_inline_event(event).recorded.load(std::memory_order_acquire);
}

bool InlineBackend::query_event(EventHandle event) {
  (void)as_inline_event(event).recorded.load(std::memory_order_acquire);
  return true;
}

bool InlineBackend::wait_event(EventHandle event, Deadline) { return query_event(event); }

double InlineBackend::elapsed_milliseconds(EventHandle begin, EventHandle end) {
  const InlineEvent& first = as_inline_event(begin);
  const InlineEvent& last = as_inline_event(end);
  LOCKSTEP_CHECK(first.timing && last.timing && first.recorded && last.recorded,
                 "[elapsed_milliseconds] expected two recorded timing events, got one that is not");
  const Clock::duration elapsed(last.time.load(std::memory_order_relaxed) - first.time.load(std::memory_order_relaxed));
  return std::chrono::duration<double, std::milli>(elapsed).count();
}

void InlineBackend::copy(const CopyArgs& args, StreamHandle stream) {
  if (args.bytes == 0 || args.destination == args.source) return;
  const TraceSpan span(*this, stream,
                       {.name = "copy", .kind = trace::Kind::copy, .bytes = args.bytes, .source = args.source_device});
  if (args.destination_device == args.source_device) {
    std::memmove(args.destination, args.source, args.bytes);  // pieces of one memory may overlap
  } else {
    std::memcpy(args.destination, args.source, args.bytes);
  }
}

void InlineBackend::fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) {
  const TraceSpan span(*this, stream, {.name = "fill", .kind = trace::Kind::fill, .bytes = bytes, .source = {}});
  if (bytes > 0) std::memset(memory, value, bytes);
}

}  // namespace lockstep::detail
