// Work of the host in the order of a CUDA stream. Private to the library.
#pragma once

#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep::cuda {

struct HostTask {
  UniqueFunction task;
  CudaDevice& device;
  DeviceSet depends_on;
  std::uint64_t sequence, caller;
  trace::Token token;
};

// A copy or a fill on a stream. Host functions around it tell when it begins and ends: timing events would say so more
// exactly, but by the GPU's clock, and only once somebody asks them. Nothing of it while nothing is traced.
class TraceSpan {
 public:
  TraceSpan(const CudaStream& stream, StreamHandle handle, const trace::Work& work) : stream_(stream) {
    if (trace::active() && !lockstep::detail::current_capture) [[unlikely]]
      begin(handle, work);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (token_ != 0) [[unlikely]]
      tell([](void* token) { trace::ended(reinterpret_cast<trace::Token>(token)); });
  }

 private:
  [[gnu::noinline, gnu::cold]] void begin(StreamHandle handle, const trace::Work& work) {
    token_ = trace::enqueued(handle, stream_.device.device, work);
    if (token_ != 0) tell([](void* token) { trace::began(reinterpret_cast<trace::Token>(token)); });
  }
  // On a device that is lost the operation says so, and the span does not begin or end.
  void tell(cudaHostFn_t function) const {
    static_assert(sizeof(void*) == sizeof(trace::Token));
    if (cudaLaunchHostFunc(stream_.native, function, reinterpret_cast<void*>(token_)) != cudaSuccess)
      (void)cudaGetLastError();
  }
  const CudaStream& stream_;
  trace::Token token_ = 0;
};

// For cudaLaunchHostFunc: takes the HostTask over. Its exception is a failure of its device.
void run_host_task(void* host_task);

}  // namespace lockstep::cuda
