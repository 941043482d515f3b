// The host modes "async" and "strict": a thread per stream and real waits, as on a device that works on its own.
#pragma once

#include <atomic>
#include <memory>

#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/host/host_stream.h"
#include "lockstep/runtime/host/links.h"

namespace lockstep::detail {

class OrderChecker;

struct AsyncOptions {
  std::uint64_t seed = 0;                  // 0: streams run as the machine lets them
  Milliseconds timeout = kDefaultTimeout;  // of waits between streams
  OrderChecker* checker = nullptr;         // mode strict
};

class AsyncBackend final : public HostBackend {
 public:
  AsyncBackend(const std::vector<DeviceLayout>& devices, const HostOptions& options, const AsyncOptions& async);

  void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* memory) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;

  bool abandoned() const noexcept override;

  StreamHandle create_stream(int index, StreamPriority priority) override;
  void destroy_stream(StreamHandle stream) noexcept override;
  bool query_stream(StreamHandle stream) override;
  void* native_stream(StreamHandle stream) override { return stream; }

  EventHandle create_event(int index, bool timing) override;
  void destroy_event(EventHandle event) noexcept override;
  void record_event(EventHandle event, StreamHandle stream) override;
  void stream_wait_event(StreamHandle stream, EventHandle event) override;
  bool query_event(EventHandle event) override;
  bool event_failed(EventHandle event) override;
  bool wait_event(EventHandle event, Deadline deadline) override;
  double elapsed_milliseconds(EventHandle begin, EventHandle end) override;

  bool can_access_peer(int from, int to) const override { return !host_faults().peer_denied(from, to); }

  DeviceLink link(int from, int to) const override { return links_.described(Device::host(from), Device::host(to)); }

  void copy(const CopyArgs& args, StreamHandle stream) override;
  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) override;
  void enqueue(StreamHandle stream, UniqueFunction task) override;

 private:
  void run_copy(const CopyArgs& args, std::uint64_t number);

  const AsyncOptions async_;
  HostLinks links_;
  std::atomic<std::uint64_t> streams_made_{0}, copies_made_{0};
};

}  // namespace lockstep::detail
