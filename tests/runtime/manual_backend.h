// Two "cuda" devices whose streams run only when a test says so, in whichever order it says: what a device that works
// on its own may do at worst. A missing edge shows as wrong bytes, a premature free as a count.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/runtime/backend.h"

namespace manual {

class ManualBackend final : public lockstep::Backend {
 public:
  static inline thread_local int bound_index = -1;  // what the calling thread was bound to

  static constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

  // Runs all that can run; among streams that can, the one that `order` puts first: 0 oldest, 1 newest, else by seed.
  // Returns the number of streams that are stuck.
  int run_all(unsigned order = 0);
  // Runs what `stream` can run.
  void run(lockstep::StreamHandle stream);
  // Makes everything as after a test that passed.
  void reset();

  int unsafe_frees = 0;   // of memory that work still queued will touch
  int native_events = 0;  // made so far
  int records = 0;
  bool fail_records = false, fail_allocations = false;
  bool all_pageable = false;  // host memory
  bool waits_help = true;     // a host wait runs what it waits for, and no more; else it ends at its deadline at once
  int host_waits = 0;
  lockstep::StreamHandle last_made = nullptr;
  lockstep::StreamPriority last_priority{};
  // Called by the next host wait, or the next free: what other threads do meanwhile.
  std::function<void()> on_host_wait, on_free;

  lockstep::DeviceType type() const noexcept override { return lockstep::DeviceType::cuda; }
  int device_count() const noexcept override { return 2; }
  const lockstep::DeviceProperties& properties(int index) const override;
  void bind_thread(int index) override { bound_index = index; }
  void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* memory) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  bool pageable(const void*) const override { return all_pageable; }
  lockstep::StreamHandle create_stream(int index, lockstep::StreamPriority priority) override;
  void destroy_stream(lockstep::StreamHandle stream) noexcept override;
  bool query_stream(lockstep::StreamHandle stream) override;
  void* native_stream(lockstep::StreamHandle stream) override { return stream; }
  lockstep::EventHandle create_event(int index, bool timing) override;
  void destroy_event(lockstep::EventHandle event) noexcept override;
  void record_event(lockstep::EventHandle event, lockstep::StreamHandle stream) override;
  void stream_wait_event(lockstep::StreamHandle stream, lockstep::EventHandle event) override;
  bool query_event(lockstep::EventHandle event) override;
  bool wait_event(lockstep::EventHandle event, lockstep::Deadline deadline) override;
  double elapsed_milliseconds(lockstep::EventHandle, lockstep::EventHandle) override { return 0; }
  void copy(const lockstep::CopyArgs& args, lockstep::StreamHandle stream) override;
  void fill_bytes(void* memory, int value, std::size_t bytes, lockstep::StreamHandle stream) override;
  bool can_access_peer(int, int) const override { return true; }
  void enable_peer_access(int, int) override {}
  void enqueue(lockstep::StreamHandle stream, lockstep::UniqueFunction task) override;

  // Tells the backend that work queued on `stream` touches the memory, as a kernel would.
  void touch(lockstep::StreamHandle stream, const void* memory);

 private:
  struct Record {
    std::uint64_t recorded = 0, finished = 0;
  };
  struct Work {
    std::function<void()> run;
    std::vector<const void*> touched;
    Record* waits_for = nullptr;
    Record* records = nullptr;
    std::uint64_t number = 0;  // of the record
  };
  struct Queue {
    std::deque<Work> work;
    bool destroyed = false;
  };
  static Queue& as_queue(lockstep::StreamHandle stream) { return *reinterpret_cast<Queue*>(stream); }
  static Record& as_record(lockstep::EventHandle event) { return *reinterpret_cast<Record*>(event); }
  bool step(Queue& queue);
  bool finish(Record& record, std::uint64_t number);
  void push(lockstep::StreamHandle stream, Work work) { as_queue(stream).work.push_back(std::move(work)); }

  std::recursive_mutex mutex_;
  std::vector<Queue*> queues_;  // never freed: a destroyed stream finishes its work
  std::map<void*, std::size_t> memory_[2];
};

// The installed one.
ManualBackend& backend();

}  // namespace manual
