#include "lockstep/runtime/cuda/cuda_check.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/log.h"

namespace lockstep::cuda {
namespace {

constexpr int kMostGpus = 64;

// Per GPU, what it was lost to. Texts live for ever.
constinit std::array<std::atomic<const std::string*>, kMostGpus> losses{};

// After these the context answers every call with the same error until the process ends (CUDA runtime API, cudaError_t:
// "leaves the process in an inconsistent state and any further CUDA work will return the same error").
bool loses_the_device(cudaError_t error) {
  switch (error) {
    case cudaErrorCudartUnloading:  // the process ends
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContained:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// What to do about a kernel that is not in the program for this GPU: a build is for some architectures, and PTX, where
// it has any, for later ones and a driver that knows it. Empty for other errors.
std::string advice_on_kernels(cudaError_t error, Device device) {
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorUnsupportedPtxVersion) return {};
  int major = 0, minor = 0;
  const int gpu = static_cast<int>(ordinal_of(device));
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu) != cudaSuccess)
    (void)cudaGetLastError();
  return cat("; ", device, " has compute capability ", major, ".", minor,
             ", and this build of Lockstep has kernels for \"" LOCKSTEP_BUILD_CUDA_ARCHITECTURES
             "\": configure with -DCMAKE_CUDA_ARCHITECTURES=",
             major, minor, ", or with -DLOCKSTEP_CUDA_FAT=ON for all GPUs since 8.0");
}

std::atomic<const std::string*>& loss_of(Device device) { return losses[static_cast<std::size_t>(ordinal_of(device))]; }

}  // namespace

void check(cudaError_t result, Device device, const char* call) {
  if (result == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();  // it has been noticed: the next call must not be blamed for it
  const std::string_view text(call);
  const std::string_view name = text.substr(0, std::min(text.find('('), text.size()));
  std::string message =
      cat("[", name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1), "] expected success, got ",
          cudaGetErrorName(result), " (", cudaGetErrorString(result), ")", advice_on_kernels(result, device));
  if (loses_the_device(result)) {
    const std::string* none = nullptr;
    const auto* loss = new std::string(cat(message, "; the device is lost for this process"));
    lockstep::detail::callers_matter.store(true, std::memory_order_relaxed);  // each is told (CudaDevice::tell_loss)
    if (!loss_of(device).compare_exchange_strong(none, loss, std::memory_order_acq_rel)) delete loss;
  }
  throw DeviceError(device, static_cast<int>(result), std::move(message));
}

const char* lost(Device device) noexcept {
  const std::string* loss = loss_of(device).load(std::memory_order_acquire);
  return loss ? loss->c_str() : nullptr;
}

void throw_if_lost(Device device) {
  if (const char* loss = lost(device)) [[unlikely]]
    throw DeviceError(device, 0, cat("[cuda] earlier: ", loss));
}

}  // namespace lockstep::cuda
