#include "lockstep/runtime/cuda/current_device.h"

#include <cuda.h>

#include <atomic>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/keep_device.h"

namespace lockstep::cuda {
namespace {

using GetState = CUresult (*)(CUdevice, unsigned int*, int*);

// The runtime has no question whether a context exists, the driver has; asked for by name, so that nothing links to it.
GetState find_get_state() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(function) : nullptr;
}

// GPUs that have been seen with a context: it stays. There are no more GPUs than devices.
constinit std::atomic<bool> with_context[kMaxDevices] = {};

bool has_context(int ordinal) {
  if (with_context[ordinal].load(std::memory_order_relaxed)) return true;
  static const GetState get_state = find_get_state();
  unsigned int flags = 0;
  int active = 0;
  if (!get_state || get_state(ordinal, &flags, &active) != CUDA_SUCCESS || !active) return false;
  with_context[ordinal].store(true, std::memory_order_relaxed);
  return true;
}

void give(int ordinal) noexcept {
  if (cudaSetDevice(ordinal) != cudaSuccess) (void)cudaGetLastError();
}

int exchange_capture_mode(int mode) noexcept {
  auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
  if (cudaThreadExchangeStreamCaptureMode(&exchanged) != cudaSuccess) (void)cudaGetLastError();
  return exchanged;
}

}  // namespace

CurrentDevice::CurrentDevice(Device device) {
  throw_if_lost(device);
  make_current(device);
  capture_mode_ = exchange_capture_mode(cudaStreamCaptureModeRelaxed);  // of a thread that has a context by now
}

void CurrentDevice::make_current(Device device) {
  const int wanted = static_cast<int>(ordinal_of(device));
  int current = -1;
  LOCKSTEP_CUDA(device, cudaGetDevice(&current));
  if (current == wanted && has_context(current)) [[likely]]
    return;
  // Also where the thread has never chosen a GPU and this one is its default: the context is made here and not by
  // whatever call comes first.
  const bool give_back = current != wanted && has_context(current);
  LOCKSTEP_CUDA(device, cudaSetDevice(wanted));
  if (give_back && !lockstep::detail::KeepDevice::later(current, give)) restore_ = current;
}

CurrentDevice::~CurrentDevice() {
  (void)exchange_capture_mode(capture_mode_);
  if (restore_ >= 0) give(restore_);
}

}  // namespace lockstep::cuda
