#include "lockstep/runtime/host/inline_backend.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep::detail {
namespace {

// Of a copy, at least: what takes several times as long as to hand it to a thread.
constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

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
  auto* const to = static_cast<std::byte*>(args.destination);
  const auto* const from = static_cast<const std::byte*>(args.source);
  const auto distance = reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  if (distance < args.bytes || 0 - distance < args.bytes) {
    std::memmove(to, from, args.bytes);  // within one memory
    return;
  }
  // One piece per thread: memcpy writes large ones around the caches. An embedder's loop may run anything of its own
  // meanwhile, and callers hold locks.
  const std::size_t threads =
      computes_alone() || configured_host().parallel_for ? 1 : static_cast<std::size_t>(get_threads());
  const std::size_t piece = std::max(kPieceBytes, (args.bytes + threads - 1) / threads);
  run_pieces(static_cast<std::int64_t>((args.bytes + piece - 1) / piece), [&](std::int64_t i) {
    const std::size_t begin = static_cast<std::size_t>(i) * piece;
    std::memcpy(to + begin, from + begin, std::min(piece, args.bytes - begin));
  });
}

void InlineBackend::fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) {
  const TraceSpan span(*this, stream, {.name = "fill", .kind = trace::Kind::fill, .bytes = bytes, .source = {}});
  if (bytes > 0) std::memset(memory, value, bytes);
}

}  // namespace lockstep::detail
