#include "lockstep/runtime/host/record_backend.h"

#include <sys/mman.h>

#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/record/recorded_device.h"

namespace lockstep::detail {
namespace {

struct RecordEvent {
  int index;
  bool recorded = false;
  Mark mark = {};
};

RecordEvent& as_record_event(EventHandle handle) { return *reinterpret_cast<RecordEvent*>(handle); }
const RecordStream& as_record_stream(StreamHandle handle) { return *reinterpret_cast<const RecordStream*>(handle); }

}  // namespace

RecordBackend::RecordBackend(const std::vector<DeviceLayout>& devices, Recorder& recorder)
    : HostBackend(DeviceType::host, devices,
                  {.synchronous = false, .checked = false, .host_memory = false, .stages_pageable = true}),
      recorder_(recorder),
      spaces_(devices.size()) {}

void RecordBackend::bind_thread(int index) { RecordedDevice::bind(index); }

void* RecordBackend::allocate(int index, std::size_t bytes) {
  if (host_faults().allocation_fails(index)) return nullptr;
  const RecordedDevice on(index);
  recorder_.call("allocate");
  const std::lock_guard lock(mutex_);
  Space& space = spaces_[static_cast<std::size_t>(index)];
  if (bytes > properties(index).total_memory_bytes - space.used) return nullptr;
  const std::size_t length = bytes > 0 ? bytes : 1;
  void* const piece =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (piece == MAP_FAILED) return nullptr;
  space.pieces.emplace(piece, length);
  space.used += bytes;
  return piece;
}

void RecordBackend::free(int index, void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  Space& space = spaces_[static_cast<std::size_t>(index)];
  const auto found = space.pieces.find(memory);
  if (found == space.pieces.end()) return;
  space.used -= std::min(space.used, found->second);
  ::munmap(memory, found->second);
  space.pieces.erase(found);
}

void* RecordBackend::allocate_pinned(std::size_t bytes) {
  recorder_.call("allocate_pinned");
  void* const memory = HostBackend::allocate_pinned(bytes);
  if (!memory) return nullptr;
  const std::lock_guard lock(mutex_);
  pinned_.emplace(memory, bytes);
  return memory;
}

void RecordBackend::free_pinned(void* memory) noexcept {
  {
    const std::lock_guard lock(mutex_);
    pinned_.erase(memory);
  }
  HostBackend::free_pinned(memory);
}

bool RecordBackend::pageable(const void* memory) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, bytes] : pinned_) {
    const auto* const first = static_cast<const std::byte*>(begin);
    if (memory >= first && memory < first + bytes) return false;
  }
  return true;
}

StreamHandle RecordBackend::create_stream(int index, StreamPriority) {
  return reinterpret_cast<StreamHandle>(
      new RecordStream{.index = index, .number = recorder_.add_stream(Device::host(index))});
}

void RecordBackend::destroy_stream(StreamHandle stream) noexcept { delete &as_record_stream(stream); }

EventHandle RecordBackend::create_event(int index, bool) {
  recorder_.call("create_event");
  return reinterpret_cast<EventHandle>(new RecordEvent{.index = index});
}

void RecordBackend::destroy_event(EventHandle event) noexcept { delete &as_record_event(event); }

void RecordBackend::record_event(EventHandle handle, StreamHandle stream) {
  const RecordedDevice on(as_record_stream(stream).index);
  RecordEvent& event = as_record_event(handle);
  event.mark = recorder_.record(number_of(stream));
  event.recorded = true;
}

void RecordBackend::stream_wait_event(StreamHandle stream, EventHandle handle) {
  const RecordEvent& event = as_record_event(handle);
  if (!event.recorded) return;
  const RecordedDevice on(as_record_stream(stream).index);
  recorder_.wait(number_of(stream), event.mark);
}

bool RecordBackend::wait_event(EventHandle handle, Deadline) {
  if (const RecordEvent& event = as_record_event(handle); event.recorded) recorder_.host_wait(event.mark);
  return true;
}

double RecordBackend::elapsed_milliseconds(EventHandle begin, EventHandle end) {
  LOCKSTEP_CHECK(as_record_event(begin).recorded && as_record_event(end).recorded,
                 "[elapsed_milliseconds] expected two recorded timing events, got one that is not");
  return 0;
}

void RecordBackend::copy(const CopyArgs& args, StreamHandle stream) {
  if (args.bytes == 0) return;
  const RecordedDevice on(as_record_stream(stream).index);
  recorder_.copy(number_of(stream), args.source_device, args.destination_device, args.bytes);
  if (args.destination_device.is_cpu()) std::memset(args.destination, 0, args.bytes);
}

void RecordBackend::fill_bytes(void*, int, std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  const RecordedDevice on(as_record_stream(stream).index);
  recorder_.fill(number_of(stream), bytes);
}

void RecordBackend::enqueue(StreamHandle stream, UniqueFunction task) {
  recorder_.task(number_of(stream));
  task();
}

}  // namespace lockstep::detail
