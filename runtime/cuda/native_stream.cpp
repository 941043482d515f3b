#include "lockstep/runtime/cuda/native_stream.h"

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

void check_cuda(const char* op, Device device) {
  if (device.type() == DeviceType::cuda) {
    ordinal(device);  // throws for an absent one
    if (device.index() < cuda::cuda_layout().count) return;
  }
  throw NotSupported(cat("[", op, "] expected a CUDA device, got ", device));
}

// An event for one wait: CUDA gives its resources back once the wait is over.
class Mark {
 public:
  Mark(Device device, cudaStream_t stream) : device_(device) {
    LOCKSTEP_CUDA(device, cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    try {
      LOCKSTEP_CUDA(device, cudaEventRecord(event_, stream));
    } catch (...) {
      destroy();
      throw;
    }
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { destroy(); }
  void hold(cudaStream_t stream) const {
    LOCKSTEP_CUDA(device_, cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault));
  }

 private:
  void destroy() const {
    if (cudaEventDestroy(event_) != cudaSuccess) (void)cudaGetLastError();
  }
  Device device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

void* native_stream(const Stream& stream) {
  check_cuda("native_stream", stream.device());
  return cuda::native(stream);
}

void wait_for_native(const Stream& stream, void* native) {
  check_cuda("wait_for_native", stream.device());
  const cuda::CurrentDevice current(stream.device());
  Mark(stream.device(), static_cast<cudaStream_t>(native)).hold(cuda::native(stream));
}

void native_waits_for(void* native, const Stream& stream) {
  check_cuda("native_waits_for", stream.device());
  const cuda::CurrentDevice current(stream.device());
  Mark(stream.device(), cuda::native(stream)).hold(static_cast<cudaStream_t>(native));
}

int native_ordinal(Device device) {
  check_cuda("native_ordinal", device);
  return static_cast<int>(cuda::ordinal_of(device));
}

std::optional<Device> device_at_ordinal(int ordinal) {
  for (const Device device : all_devices())
    if (device.type() == DeviceType::cuda && native_ordinal(device) == ordinal) return device;
  return std::nullopt;
}

}  // namespace lockstep
