// The host mode "inline": work runs at once in the thread that enqueues it, so that nothing is ever in flight.
#pragma once

#include "lockstep/runtime/host/host_backend.h"

namespace lockstep::detail {

class InlineBackend : public HostBackend {
 public:
  InlineBackend(DeviceType type, const std::vector<DeviceLayout>& devices, bool checked = false)
      : HostBackend(type, devices, {.synchronous = true, .checked = checked}) {}

  StreamHandle create_stream(int index, StreamPriority priority) override;
  void destroy_stream(StreamHandle stream) noexcept override;
  bool query_stream(StreamHandle) override { return true; }
  void* native_stream(StreamHandle stream) override { return stream; }

  EventHandle create_event(int index, bool timing) override;
  void destroy_event(EventHandle event) noexcept override;
  void record_event(EventHandle event, StreamHandle stream) override;
  void stream_wait_event(StreamHandle stream, EventHandle event) override;
  bool query_event(EventHandle event) override;
  bool wait_event(EventHandle event, Deadline deadline) override;
  double elapsed_milliseconds(EventHandle begin, EventHandle end) override;

  void copy(const CopyArgs& args, StreamHandle stream) override;
  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) override;
  void enqueue(StreamHandle stream, UniqueFunction task) override { (void)stream, task(); }
};

}  // namespace lockstep::detail
