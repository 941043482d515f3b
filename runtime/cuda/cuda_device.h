// What the backend keeps per logical device. Private to the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "lockstep/runtime/cuda/cuda_memory.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/kernel_report.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/host/completion.h"

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
  bool pooled() const { return memory_.pooled(); }
  // Whether it is this device's, and not that of another one on the same GPU. For tests: nothing else tells them apart.
  bool owns(const void* memory) const;

  // A host task of the device that was enqueued as number `sequence` (see completion.h) has failed: what was enqueued
  // after it, until the host is told, fails with it. CUDA knows nothing of that, so it holds for the device as a whole.
  void fail(std::uint64_t sequence, std::shared_ptr<detail::Failure> failure) noexcept;
  // The failure that concerns what `caller` has enqueued as number `sequence`; null if there is none.
  std::shared_ptr<detail::Failure> failure_of(std::uint64_t sequence, std::uint64_t caller) const;
  // Throws what a kernel of one of these callers (bit_of) has reported, once; of `caller` first.
  void surface_report(std::uint64_t callers, std::uint64_t caller);
  // Throws when the GPU is lost, once to each caller (runtime/caller.h) that there was by then: work on other
  // devices that came after this one's has read what was never computed.
  void tell_loss();

  const Device device;
  const Ordinal ordinal;
  const std::size_t share_bytes;  // 0: the GPU is this device's alone
  const DeviceProperties properties;

 private:
  std::atomic<bool> has_started_{false};
  KernelReport* reports_ = nullptr;  // kReports
  KernelReport* mapped_reports_ = nullptr;

  CudaMemory memory_;

  mutable std::mutex mutex_;
  std::size_t used_bytes_ = 0;
  std::map<const void*, std::size_t, std::less<>> pieces_;
  struct Failed {
    std::uint64_t since;
    std::shared_ptr<detail::Failure> failure;
  };
  std::deque<Failed> failures_;  // the last ones, oldest first
  std::atomic<bool> failed_{false};
  std::set<std::uint64_t> told_;  // of the loss
  std::uint64_t strangers_ = 0;   // callers from this number on came after it

  void surface_report(KernelReport& report);

  friend KernelReport* kernel_report(Device device);
};

// All logical devices, fixed when the backend is made. Empty without a driver or a GPU.
struct CudaLayout {
  CudaDevice* const* devices = nullptr;
  int count = 0;
};
const CudaLayout& cuda_layout();
CudaDevice& cuda_device(Device device);

// Which GPU of the machine the device is on: the same in every process, whichever GPUs it sees and in whatever order.
std::string gpu_identity(Device device);

}  // namespace lockstep::cuda
