// Plain host memory while the order checker is at work: as inline, but what the calling thread does there is reported,
// and events hand over between threads.
#pragma once

#include "lockstep/runtime/host/inline_backend.h"

namespace lockstep::detail {

class OrderChecker;

class CheckedCpuBackend final : public InlineBackend {
 public:
  CheckedCpuBackend(const std::vector<DeviceLayout>& devices, OrderChecker& checker)
      : InlineBackend(DeviceType::cpu, devices, true), checker_(checker) {}

  void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* memory) noexcept override;

  void record_event(EventHandle event, StreamHandle stream) override;
  void stream_wait_event(StreamHandle stream, EventHandle event) override;
  bool query_event(EventHandle event) override;
  bool wait_event(EventHandle event, Deadline deadline) override;

  void copy(const CopyArgs& args, StreamHandle stream) override;
  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) override;

 private:
  OrderChecker& checker_;
};

}  // namespace lockstep::detail
