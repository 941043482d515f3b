// The host mode "record": what is enqueued is written down and does not run (runtime/record/record.h).
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/record/recorder.h"

namespace lockstep::detail {

class RecordBackend final : public HostBackend {
 public:
  RecordBackend(const std::vector<DeviceLayout>& devices, Recorder& recorder);

  void bind_thread(int index) override;

  // Address ranges: nothing is in them until somebody writes there, and zeros are read.
  void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* memory) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  bool pageable(const void* memory) const override;

  StreamHandle create_stream(int index, StreamPriority priority) override;
  void destroy_stream(StreamHandle stream) noexcept override;
  bool query_stream(StreamHandle) override { return true; }
  void* native_stream(StreamHandle stream) override { return stream; }

  EventHandle create_event(int index, bool timing) override;
  void destroy_event(EventHandle event) noexcept override;
  void record_event(EventHandle event, StreamHandle stream) override;
  void stream_wait_event(StreamHandle stream, EventHandle event) override;
  bool query_event(EventHandle) override { return true; }
  bool wait_event(EventHandle event, Deadline deadline) override;
  // Zero: there are no times.
  double elapsed_milliseconds(EventHandle begin, EventHandle end) override;

  bool can_access_peer(int from, int to) const override { return !host_faults().peer_denied(from, to); }

  DeviceLink link(int from, int to) const override { return recorder_.link(from, to); }

  void copy(const CopyArgs& args, StreamHandle stream) override;
  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) override;
  // A host function: runs at once.
  void enqueue(StreamHandle stream, UniqueFunction task) override;

 private:
  struct Space {
    std::size_t used = 0;
    std::unordered_map<void*, std::size_t> pieces;
  };

  Recorder& recorder_;
  mutable std::mutex mutex_;
  std::vector<Space> spaces_;
  std::unordered_map<const void*, std::size_t> pinned_;
};

}  // namespace lockstep::detail
