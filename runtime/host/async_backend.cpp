#include "lockstep/runtime/host/async_backend.h"

#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {
namespace {

struct HostEvent {
  bool timing;
  std::mutex mutex;
  std::shared_ptr<Completion> mark;  // of the last record

  std::shared_ptr<Completion> last() {
    std::lock_guard lock(mutex);
    return mark;
  }
};

HostStream& as_stream(StreamHandle handle) { return *reinterpret_cast<HostStream*>(handle); }
HostEvent& as_event(EventHandle handle) { return *reinterpret_cast<HostEvent*>(handle); }

// Throws when the device that runs a copy cannot reach one of the two memories.
void check_reach(Device runs_on, const CopyArgs& args) {
  for (const Device device : {args.source_device, args.destination_device}) {
    if (device.type() == DeviceType::host && host_faults().peer_denied(runs_on.index(), device.index())) {
      throw DeviceError(runs_on, 0, cat("[copy] expected peer access from ", runs_on, " to ", device, ", got none"));
    }
  }
}

bool loses_writes(const CopyArgs& args) {
  return args.source_device.type() == DeviceType::host && args.destination_device.type() == DeviceType::host &&
         host_faults().writes_lost(args.source_device.index(), args.destination_device.index());
}

}  // namespace

AsyncBackend::AsyncBackend(const std::vector<DeviceLayout>& devices, const HostOptions& options,
                           const AsyncOptions& async)
    : HostBackend(DeviceType::host, devices, {.synchronous = false, .checked = async.checker != nullptr}),
      async_(async),
      links_(options, static_cast<int>(devices.size())) {
  callers_matter.store(true, std::memory_order_relaxed);
}

void* AsyncBackend::allocate(int index, std::size_t bytes) {
  void* memory = HostBackend::allocate(index, bytes);
  if (memory && async_.checker) async_.checker->add_memory(memory, bytes, Device::host(index), false);
  return memory;
}

void AsyncBackend::free(int index, void* memory) noexcept {
  if (async_.checker) async_.checker->remove_memory(memory);
  HostBackend::free(index, memory);
}

void* AsyncBackend::allocate_pinned(std::size_t bytes) {
  void* memory = HostBackend::allocate_pinned(bytes);
  if (memory && async_.checker) async_.checker->add_memory(memory, bytes, Device::cpu(), true);
  return memory;
}

void AsyncBackend::free_pinned(void* memory) noexcept {
  if (async_.checker) async_.checker->remove_memory(memory);
  HostBackend::free_pinned(memory);
}

bool AsyncBackend::abandoned() const noexcept {
  return library_threads.load(std::memory_order_acquire) != Threads::run;
}

StreamHandle AsyncBackend::create_stream(int index, StreamPriority) {
  const Schedule schedule(async_.seed, streams_made_.fetch_add(1, std::memory_order_relaxed));
  auto* stream = new HostStream(Device::host(index), schedule, async_.timeout);
  const auto handle = reinterpret_cast<StreamHandle>(stream);
  if (async_.checker) async_.checker->add_stream(handle, stream->device(), stream->ticks());
  return handle;
}

void AsyncBackend::destroy_stream(StreamHandle stream) noexcept {
  if (async_.checker) async_.checker->remove_stream(stream);
  as_stream(stream).close();
}

bool AsyncBackend::query_stream(StreamHandle stream) { return as_stream(stream).idle(); }

EventHandle AsyncBackend::create_event(int, bool timing) {
  return reinterpret_cast<EventHandle>(new HostEvent{.timing = timing, .mutex = {}, .mark = {}});
}

void AsyncBackend::destroy_event(EventHandle event) noexcept { delete &as_event(event); }

void AsyncBackend::record_event(EventHandle handle, StreamHandle stream) {
  auto mark = std::make_shared<Completion>();
  if (async_.checker) mark->order = async_.checker->record(stream);
  as_stream(stream).record(mark);
  HostEvent& event = as_event(handle);
  std::lock_guard lock(event.mutex);
  event.mark = std::move(mark);
}

void AsyncBackend::stream_wait_event(StreamHandle stream, EventHandle event) {
  std::shared_ptr<Completion> mark = as_event(event).last();
  if (!mark) return;
  if (async_.checker) async_.checker->wait(stream, mark->order);
  as_stream(stream).wait_for(std::move(mark));
}

bool AsyncBackend::query_event(EventHandle event) {
  const std::shared_ptr<Completion> mark = as_event(event).last();
  return !mark || mark->finished();
}

bool AsyncBackend::event_failed(EventHandle event) {
  const std::shared_ptr<Completion> mark = as_event(event).last();
  return mark && mark->finished() && mark->failure();
}

bool AsyncBackend::wait_event(EventHandle event, Deadline deadline) {
  const std::shared_ptr<Completion> mark = as_event(event).last();
  if (!mark) return true;
  if (!mark->wait(deadline)) return false;
  if (async_.checker) async_.checker->host_wait(mark->order);
  if (mark->failure()) mark->failure()->surface();
  return true;
}

double AsyncBackend::elapsed_milliseconds(EventHandle begin, EventHandle end) {
  const std::shared_ptr<Completion> first = as_event(begin).last(), last = as_event(end).last();
  const bool measured =
      as_event(begin).timing && as_event(end).timing && first && last && first->finished() && last->finished();
  LOCKSTEP_CHECK(measured, "[elapsed_milliseconds] expected two recorded timing events, got one that is not");
  return std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
}

void AsyncBackend::copy(const CopyArgs& args, StreamHandle stream) {
  if (args.bytes == 0) return;
  HostStream& runs_on = as_stream(stream);
  check_reach(runs_on.device(), args);
  if (async_.checker) async_.checker->copy(stream, args);
  runs_on.run([this, args, number = copies_made_.fetch_add(1, std::memory_order_relaxed)] { run_copy(args, number); },
              {.name = "copy", .kind = trace::Kind::copy, .bytes = args.bytes, .source = args.source_device});
}

void AsyncBackend::run_copy(const CopyArgs& args, std::uint64_t number) {
  const Clock::time_point finish = links_.carry(args.source_device, args.destination_device, args.bytes);
  const bool writes = !loses_writes(args);
  // The source may be read at any time until the copy is through: mode strict does so early or late, by seed.
  const bool reads_late = !async_.checker || (async_.seed ^ number) % 2 == 0;
  if (reads_late) {
    std::this_thread::sleep_until(finish);
    if (writes) std::memmove(args.destination, args.source, args.bytes);
    return;
  }
  // The bytes become visible when the copy is through and not before.
  const std::unique_ptr<std::byte[]> in_flight(new std::byte[args.bytes]);
  std::memcpy(in_flight.get(), args.source, args.bytes);
  std::this_thread::sleep_until(finish);
  if (writes) std::memcpy(args.destination, in_flight.get(), args.bytes);
}

void AsyncBackend::fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  HostStream& runs_on = as_stream(stream);
  if (async_.checker) async_.checker->fill(stream, runs_on.device(), memory, bytes);
  runs_on.run([=] { std::memset(memory, value, bytes); },
              {.name = "fill", .kind = trace::Kind::fill, .bytes = bytes, .source = {}});
}

void AsyncBackend::enqueue(StreamHandle stream, UniqueFunction task) { as_stream(stream).run(std::move(task)); }

}  // namespace lockstep::detail
