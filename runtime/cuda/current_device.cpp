#include "lockstep/runtime/cuda/current_device.h"

#include <cuda.h>

#include <atomic>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/keep_device.h"

namespace lockstep::cuda {
namespace {

// The runtime has no question whether a context exists, nor which one is current: the driver has. Asked for by name, so
// that nothing links to it.
template <class Function>
Function find(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &function, 7000, cudaEnableDefault, &found);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}

struct Driver {
  CUresult (*primary_state)(CUdevice, unsigned int*, int*);
  CUresult (*retain_primary)(CUcontext*, CUdevice);
  CUresult (*current)(CUcontext*);
  CUresult (*set_current)(CUcontext);
};

const Driver& driver() {
  static const Driver found{find<decltype(Driver::primary_state)>("cuDevicePrimaryCtxGetState"),
                            find<decltype(Driver::retain_primary)>("cuDevicePrimaryCtxRetain"),
                            find<decltype(Driver::current)>("cuCtxGetCurrent"),
                            find<decltype(Driver::set_current)>("cuCtxSetCurrent")};
  return found;
}

// GPUs that have been seen with a context: it stays. There are no more GPUs than devices.
constinit std::atomic<bool> with_context[kMaxDevices] = {};

bool has_context(int ordinal) {
  if (with_context[ordinal].load(std::memory_order_relaxed)) return true;
  unsigned int flags = 0;
  int active = 0;
  const auto ask = driver().primary_state;
  if (!ask || ask(ordinal, &flags, &active) != CUDA_SUCCESS || !active) return false;
  with_context[ordinal].store(true, std::memory_order_relaxed);
  return true;
}

// The context that is current in the thread, on the GPU `ordinal`, where it is another one than the GPU's primary, in
// which the runtime and this library work: of a library that makes its own (cuCtxCreate). Null otherwise.
CUcontext foreign_context(int ordinal) {
  CUcontext current = nullptr;
  if (!driver().current || !driver().set_current || driver().current(&current) != CUDA_SUCCESS || !current)
    return nullptr;
  if (!has_context(ordinal)) return current;
  static constinit std::atomic<CUcontext> primaries[kMaxDevices] = {};  // kept for the process
  CUcontext primary = primaries[ordinal].load(std::memory_order_relaxed);
  if (!primary) [[unlikely]] {
    if (!driver().retain_primary || driver().retain_primary(&primary, ordinal) != CUDA_SUCCESS) return nullptr;
    primaries[ordinal].store(primary, std::memory_order_relaxed);
  }
  return current == primary ? nullptr : current;
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
  const CUcontext foreign = foreign_context(current);
  if (current == wanted && !foreign && has_context(current)) [[likely]]
    return;
  // Also where the thread has never chosen a GPU and this one is its default: the context is made here and not by
  // whatever call comes first.
  const bool give_back = current != wanted && has_context(current);
  LOCKSTEP_CUDA(device, cudaSetDevice(wanted));
  foreign_ = foreign;
  if (!foreign && give_back && !lockstep::detail::KeepDevice::later(current, give)) restore_ = current;
}

CurrentDevice::~CurrentDevice() {
  (void)exchange_capture_mode(capture_mode_);
  if (foreign_) (void)driver().set_current(static_cast<CUcontext>(foreign_));
  if (restore_ >= 0) give(restore_);
}

}  // namespace lockstep::cuda
