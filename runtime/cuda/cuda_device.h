// What the backend keeps per logical device. Private to the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>

#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/kernel_report.h"
#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

class CudaDevice {
 public:
  CudaDevice(int index, Ordinal on, std::size_t memory_share_bytes, DeviceProperties props)
      : device(Device::cuda(index)), ordinal(on), share_bytes(memory_share_bytes), properties(std::move(props)) {}

  // Makes the context and everything else that the device will need, on first use.
  void start();
  bool started() const { return has_started_.load(std::memory_order_acquire); }

  // Raw memory, within the share. Null when there is none left.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;
  // Whether it is this device's, and not that of another one on the same GPU. For tests: nothing else tells them apart.
  bool owns(const void* memory) const;

  // Work of the device met an error on the host's side: the first one waits here for the next wait.
  void fail(std::exception_ptr error) noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Throws what fail() or a kernel reported, once.
  void surface();
  KernelReport* report() const { return report_; }

  const Device device;
  const Ordinal ordinal;
  const std::size_t share_bytes;  // 0: the GPU is this device's alone
  const DeviceProperties properties;

 private:
  std::once_flag once_;
  std::atomic<bool> has_started_{false};
  KernelReport* report_ = nullptr;
  KernelReport* mapped_report_ = nullptr;

  mutable std::mutex mutex_;
  std::size_t used_bytes_ = 0;
  std::map<const void*, std::size_t, std::less<>> pieces_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};

  friend KernelReport* kernel_report(Device device);
};

// All logical devices, fixed when the backend is made. Empty without a driver or a GPU.
struct CudaLayout {
  CudaDevice* const* devices = nullptr;
  int count = 0;
};
const CudaLayout& cuda_layout();
CudaDevice& cuda_device(Device device);

}  // namespace lockstep::cuda
