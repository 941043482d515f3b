// What is behind the handles of streams and events of CUDA devices, and what has failed of their work. Private to the
// library.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::cuda {

// Logical devices, by bit of their index.
using DeviceSet = std::uint32_t;
static_assert(sizeof(DeviceSet) * 8 >= 32);
// Callers (runtime/caller.h), by bit of the place where their kernels report.
using CallerSet = std::uint64_t;
static_assert(sizeof(CallerSet) * 8 == kReports);
inline CallerSet bit_of(std::uint64_t caller) { return CallerSet{1} << (caller % kReports); }

struct CudaStream {
  CudaDevice& device;
  cudaStream_t native = nullptr;
  // The devices whose work this stream's work comes after: a host-side error of one of them is an error of what this
  // stream does later. CUDA carries its own errors along; those of host tasks and of bad indices it knows nothing of.
  std::atomic<DeviceSet> depends_on;
  std::atomic<CallerSet> callers{0};      // whose kernels this stream's work comes after
  bool adopted = false;                   // another library's
  std::atomic<std::uint64_t> capture{0};  // that records it (cuda_graph.h)
};

struct CudaEvent {
  CudaDevice& device;
  cudaEvent_t native = nullptr;
  bool timing;
  std::atomic<DeviceSet> depends_on{0};  // none until it is recorded
  std::atomic<CallerSet> callers{0};
  std::atomic<std::uint64_t> sequence{0}, caller{0};  // of the last record
  std::atomic<std::uint64_t> capture{0};              // in which it was recorded, in no stream's order
};

inline CudaStream& as_stream(StreamHandle handle) { return *reinterpret_cast<CudaStream*>(handle); }
inline CudaEvent& as_event(EventHandle handle) { return *reinterpret_cast<CudaEvent*>(handle); }
inline DeviceSet bit(const CudaDevice& device) { return DeviceSet{1} << device.device.index(); }

inline void add_caller(CudaStream& stream, std::uint64_t caller) {
  if (!(stream.callers.load(std::memory_order_relaxed) & bit_of(caller)))
    stream.callers.fetch_or(bit_of(caller), std::memory_order_relaxed);
}

// The CUDA stream behind a stream of a CUDA device, for the calling thread to enqueue on.
cudaStream_t native(const Stream& stream);

// What has failed of what `caller` enqueued as number `sequence`, after work of these devices.
std::shared_ptr<detail::Failure> failure_of(DeviceSet devices, std::uint64_t sequence, std::uint64_t caller);
// Throws it, or what a kernel of one of `callers` has reported.
void surface(DeviceSet devices, CallerSet callers, std::uint64_t sequence, std::uint64_t caller);
// Who waits for these devices hears of those that are lost.
void tell_losses(DeviceSet devices);

}  // namespace lockstep::cuda
