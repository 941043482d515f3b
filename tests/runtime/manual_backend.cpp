#include "runtime/manual_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "lockstep/runtime/error.h"

namespace manual {

using namespace lockstep;

ManualBackend& backend() {
  static ManualBackend* const made = new ManualBackend;
  return *made;
}

namespace {
const bool installed = (detail::install_backend(backend()), true);
}

bool ManualBackend::step(Queue& queue) {
  if (queue.work.empty()) return false;
  const Work& first = queue.work.front();
  if (first.waits_for && first.waits_for->finished < first.number) return false;
  const Work work = std::move(queue.work.front());
  queue.work.pop_front();
  if (work.run) work.run();
  if (work.records) work.records->finished = std::max(work.records->finished, work.number);
  return true;
}

// Runs what must run for the record, and no more; false when that is stuck.
bool ManualBackend::finish(Record& record, std::uint64_t number) {
  for (Queue* queue : queues_) {
    for (;;) {
      if (record.finished >= number) return true;
      const bool here = std::any_of(queue->work.begin(), queue->work.end(),
                                    [&](const Work& work) { return work.records == &record && work.number == number; });
      if (!here) break;
      const Work& first = queue->work.front();
      if (!step(*queue) && !finish(*first.waits_for, first.number)) return false;
    }
  }
  return record.finished >= number;
}

int ManualBackend::run_all(unsigned order) {
  std::lock_guard lock(mutex_);
  std::mt19937 random(order);
  for (;;) {
    std::vector<Queue*> candidates(queues_);
    if (order == 1) candidates.assign(queues_.rbegin(), queues_.rend());
    if (order > 1) std::shuffle(candidates.begin(), candidates.end(), random);
    bool progress = false;
    for (Queue* queue : candidates) {
      if (step(*queue)) {
        progress = true;
        break;
      }
    }
    if (!progress) break;
  }
  int stuck = 0;
  for (Queue* queue : queues_) stuck += queue->work.empty() ? 0 : 1;
  return stuck;
}

void ManualBackend::run(StreamHandle stream) {
  std::lock_guard lock(mutex_);
  while (step(as_queue(stream))) {
  }
}

void ManualBackend::reset() {
  run_all();
  std::lock_guard lock(mutex_);
  unsafe_frees = host_waits = records = 0;
  fail_records = fail_allocations = all_pageable = false;
  waits_help = true;
  on_host_wait = on_free = {};
}

const DeviceProperties& ManualBackend::properties(int) const {
  static const auto* const made = new DeviceProperties{.name = "manual", .total_memory_bytes = kMemoryBytes};
  return *made;
}

void* ManualBackend::allocate(int index, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (fail_allocations) throw DeviceError(Device::cuda(index), 2, "[allocate] refused");
  std::size_t used = 0;
  for (const auto& [piece, size] : memory_[index]) used += size;
  if (bytes > kMemoryBytes - used) return nullptr;
  void* piece = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  memory_[index][piece] = bytes;
  return piece;
}

void ManualBackend::free(int index, void* memory) noexcept {
  if (auto meanwhile = std::exchange(on_free, {})) meanwhile();
  std::lock_guard lock(mutex_);
  const auto found = memory_[index].find(memory);
  if (found == memory_[index].end()) std::abort();
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (Queue* queue : queues_) {
    for (const Work& work : queue->work) {
      for (const void* touched : work.touched) {
        const auto* const at = static_cast<const std::byte*>(touched);
        if (at >= begin && at < begin + found->second) ++unsafe_frees;
      }
    }
  }
  memory_[index].erase(found);
  std::free(memory);
}

void* ManualBackend::allocate_pinned(std::size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
void ManualBackend::free_pinned(void* memory) noexcept { std::free(memory); }

StreamHandle ManualBackend::create_stream(int, StreamPriority priority) {
  std::lock_guard lock(mutex_);
  queues_.push_back(new Queue);
  last_priority = priority;
  return last_made = reinterpret_cast<StreamHandle>(queues_.back());
}

void ManualBackend::destroy_stream(StreamHandle stream) noexcept {
  std::lock_guard lock(mutex_);
  as_queue(stream).destroyed = true;
}

bool ManualBackend::query_stream(StreamHandle stream) {
  std::lock_guard lock(mutex_);
  return as_queue(stream).work.empty();
}

EventHandle ManualBackend::create_event(int, bool) {
  std::lock_guard lock(mutex_);
  ++native_events;
  return reinterpret_cast<EventHandle>(new Record);
}

void ManualBackend::destroy_event(EventHandle event) noexcept { delete &as_record(event); }

void ManualBackend::record_event(EventHandle event, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  if (as_queue(stream).destroyed) std::abort();
  if (fail_records) throw DeviceError(Device::cuda(0), 7, "[record_event] expected a device that works, got none");
  Record& record = as_record(event);
  const std::uint64_t number = ++record.recorded;
  ++records;
  push(stream, {.run = {}, .touched = {}, .records = &record, .number = number});
}

void ManualBackend::stream_wait_event(StreamHandle stream, EventHandle event) {
  std::lock_guard lock(mutex_);
  if (as_queue(stream).destroyed) std::abort();
  Record& record = as_record(event);
  push(stream, {.run = {}, .touched = {}, .waits_for = &record, .number = record.recorded});
}

bool ManualBackend::query_event(EventHandle event) {
  std::lock_guard lock(mutex_);
  return as_record(event).finished == as_record(event).recorded;
}

bool ManualBackend::wait_event(EventHandle event, Deadline) {
  if (auto meanwhile = std::exchange(on_host_wait, {})) meanwhile();
  std::lock_guard lock(mutex_);
  ++host_waits;
  if (waits_help) finish(as_record(event), as_record(event).recorded);
  return query_event(event);
}

void ManualBackend::copy(const CopyArgs& args, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  push(stream, {.run = [args] { std::memcpy(args.destination, args.source, args.bytes); },
                .touched = {args.destination, args.source}});
}

void ManualBackend::fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  push(stream, {.run = [=] { std::memset(memory, value, bytes); }, .touched = {memory}});
}

void ManualBackend::enqueue(StreamHandle stream, UniqueFunction task) {
  std::lock_guard lock(mutex_);
  auto shared = std::make_shared<UniqueFunction>(std::move(task));
  push(stream, {.run = [shared] { (*shared)(); }, .touched = {}});
}

void ManualBackend::touch(StreamHandle stream, const void* memory) {
  std::lock_guard lock(mutex_);
  push(stream, {.run = {}, .touched = {memory}});
}

}  // namespace manual
