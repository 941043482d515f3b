#include "lockstep/runtime/cuda/cuda_stream.h"

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/cuda/cuda_graph.h"

namespace lockstep::cuda {

cudaStream_t native(const Stream& stream) {
  CudaStream& found = as_stream(stream.handle());
  check_records(found, "launch");
  add_caller(found, lockstep::detail::caller());
  return found.native;
}

std::shared_ptr<detail::Failure> failure_of(DeviceSet devices, std::uint64_t sequence, std::uint64_t caller) {
  const CudaLayout& layout = cuda_layout();
  for (int i = 0; devices != 0; ++i, devices >>= 1) {
    if (!(devices & 1)) continue;
    if (auto failure = layout.devices[i]->failure_of(sequence, caller)) return failure;
  }
  return nullptr;
}

void surface(DeviceSet devices, CallerSet callers, std::uint64_t sequence, std::uint64_t caller) {
  if (const auto failure = failure_of(devices, sequence, caller)) failure->surface();
  const CudaLayout& layout = cuda_layout();
  for (int i = 0; devices != 0; ++i, devices >>= 1) {
    if (devices & 1) layout.devices[i]->surface_report(callers, caller);
  }
}

void tell_losses(DeviceSet devices) {
  const CudaLayout& layout = cuda_layout();
  for (int i = 0; devices != 0; ++i, devices >>= 1) {
    if (devices & 1) layout.devices[i]->tell_loss();
  }
}

}  // namespace lockstep::cuda
