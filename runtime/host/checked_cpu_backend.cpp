#include "lockstep/runtime/host/checked_cpu_backend.h"

#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {

void* CheckedCpuBackend::allocate(int index, std::size_t bytes) {
  void* memory = InlineBackend::allocate(index, bytes);
  if (memory) checker_.add_memory(memory, bytes, Device::cpu(), false);
  return memory;
}

void CheckedCpuBackend::free(int index, void* memory) noexcept {
  checker_.remove_memory(memory);
  InlineBackend::free(index, memory);
}

void CheckedCpuBackend::record_event(EventHandle event, StreamHandle stream) {
  checker_.hand_over(event);
  InlineBackend::record_event(event, stream);
}

void CheckedCpuBackend::stream_wait_event(StreamHandle stream, EventHandle event) {
  InlineBackend::stream_wait_event(stream, event);
  checker_.take_over(event);
}

bool CheckedCpuBackend::query_event(EventHandle event) {
  const bool done = InlineBackend::query_event(event);
  checker_.take_over(event);
  return done;
}

bool CheckedCpuBackend::wait_event(EventHandle event, Deadline deadline) {
  const bool done = InlineBackend::wait_event(event, deadline);
  checker_.take_over(event);
  return done;
}

void CheckedCpuBackend::copy(const CopyArgs& args, StreamHandle stream) {
  if (args.bytes > 0) checker_.copy(stream, args);
  InlineBackend::copy(args, stream);
}

void CheckedCpuBackend::fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) {
  if (bytes > 0) checker_.fill(stream, Device::cpu(), memory, bytes);
  InlineBackend::fill_bytes(memory, value, bytes, stream);
}

}  // namespace lockstep::detail
