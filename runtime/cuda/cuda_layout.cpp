// Which logical devices there are.
#include <algorithm>
#include <vector>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/cuda/cuda_versions.h"
#include "lockstep/runtime/cuda/why_no_cuda.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::cuda {
namespace {

int gpu_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return count;
  (void)cudaGetLastError();
  // No driver, or no GPU: a machine without CUDA devices. A driver that is too old is a machine that was meant to have
  // some; the runtime gives both the same error.
  const bool has_driver = !detail::cuda_driver_version().found.empty();
  if (result != cudaErrorNoDevice && (result != cudaErrorInsufficientDriver || has_driver))
    log(LogLevel::warning,
        cat("[cuda] expected to count the GPUs; ", detail::why_no_cuda(), "; going on without CUDA devices"));
  return 0;
}

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp found{};
  const cudaError_t result = cudaGetDeviceProperties(&found, ordinal);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    throw DeviceError(Device::cuda(ordinal), static_cast<int>(result),
                      cat("[cuda] expected the properties of GPU ", ordinal, ", got ", cudaGetErrorName(result)));
  }
  return found;
}

CudaLayout make_layout() {
  const std::string_view wanted = detail::environment("LOCKSTEP_CUDA_DEVICES");
  const int limit = wanted.empty() ? kMaxDevices : detail::parse_count("LOCKSTEP_CUDA_DEVICES", wanted, 0, kMaxDevices);
  if (limit == 0) return {};
  const int gpus = gpu_count();
  const int count = gpus == 0 ? 0 : wanted.empty() ? std::min(gpus, kMaxDevices) : limit;

  auto* devices = new std::vector<CudaDevice*>;  // for ever, as the backend
  for (int i = 0; i < count; ++i) {
    const int ordinal = i % gpus;
    const int sharers = (count - ordinal + gpus - 1) / gpus;  // logical devices on this GPU
    const cudaDeviceProp found = properties_of(ordinal);
    DeviceProperties properties{.name = found.name,
                                .total_memory_bytes = found.totalGlobalMem / static_cast<std::size_t>(sharers),
                                .multiprocessors = found.multiProcessorCount,
                                .synchronous = false,
                                .checked = detail::OrderChecker::active() != nullptr,
                                .stages_pageable = true};
    const std::size_t share_bytes = sharers == 1 ? 0 : properties.total_memory_bytes;
    devices->push_back(new CudaDevice(i, Ordinal{ordinal}, share_bytes, std::move(properties)));
  }
  return {devices->data(), count};
}

}  // namespace

const CudaLayout& cuda_layout() {
  static const CudaLayout layout = make_layout();
  return layout;
}

std::string gpu_identity(Device device) {
  const cudaDeviceProp found = properties_of(static_cast<int>(ordinal_of(device)));
  // Where it is plugged in, which is also what NCCL tells GPUs apart by.
  return cat(found.pciDomainID, ':', found.pciBusID, ':', found.pciDeviceID);
}

}  // namespace lockstep::cuda

namespace lockstep::detail {

std::string why_no_cuda() {
  if (environment("LOCKSTEP_CUDA_DEVICES") == "0") return "LOCKSTEP_CUDA_DEVICES is 0";
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) (void)cudaGetLastError();
  if (result == cudaErrorInsufficientDriver) {
    const std::string driver = cuda_driver_version().found;
    return driver.empty()
               ? "there is no NVIDIA driver"
               : cat("the NVIDIA driver is for CUDA ", driver, ", and this build of Lockstep needs one for CUDA ",
                     CUDART_VERSION / 1000, ".0 or later");
  }
  if (result != cudaSuccess && result != cudaErrorNoDevice)
    return cat("counting the GPUs gave ", cudaGetErrorName(result), " (", cudaGetErrorString(result), ")");
  return "the driver finds no GPU";
}

}  // namespace lockstep::detail
