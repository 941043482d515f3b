#include "lockstep/runtime/cuda/cuda_device.h"

#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::cuda {

void CudaDevice::start() {
  if (started()) [[likely]]
    return;
  const CurrentDevice current(device);
  const detail::GrowthLock alone;
  if (started()) return;  // by another thread meanwhile
  void* memory = nullptr;
  constexpr std::size_t kBytes = kReports * sizeof(KernelReport);
  cudaError_t result = cudaHostAlloc(&memory, kBytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemory(Device::cpu(), kBytes, 0, 0);
  }
  check(result, device, "cudaHostAlloc");
  void* mapped = nullptr;
  result = cudaHostGetDevicePointer(&mapped, memory, 0);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
  }
  check(result, device, "cudaHostGetDevicePointer");
  try {
    memory_.start(device);
  } catch (...) {
    if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
    throw;
  }
  reports_ = new (memory) KernelReport[kReports]{};
  mapped_reports_ = static_cast<KernelReport*>(mapped);
  has_started_.store(true, std::memory_order_release);
}

void* CudaDevice::allocate(std::size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (share_bytes != 0 && bytes > share_bytes - used_bytes_) return nullptr;
    used_bytes_ += bytes;
  }
  void* memory = nullptr;
  try {
    const CurrentDevice current(device);
    const detail::GrowthLock alone;
    memory = memory_.allocate(device, bytes);
  } catch (...) {
    std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
    throw;
  }
  std::lock_guard lock(mutex_);
  if (memory)
    pieces_.emplace(memory, bytes);
  else
    used_bytes_ -= bytes;
  return memory;
}

void CudaDevice::free(void* memory) noexcept try {
  if (!memory) return;
  {
    std::lock_guard lock(mutex_);
    const auto piece = pieces_.find(memory);
    if (piece == pieces_.end()) return;
    used_bytes_ -= piece->second;
    pieces_.erase(piece);
  }
  if (lost(device)) return;  // it went with the context
  const CurrentDevice current(device);
  const detail::GrowthLock alone;
  memory_.free(memory);
} catch (...) {
}

bool CudaDevice::owns(const void* memory) const {
  std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(memory);
  if (after == pieces_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return memory < static_cast<const std::byte*>(begin) + bytes;
}

void CudaDevice::fail(std::uint64_t sequence, std::shared_ptr<detail::Failure> failure) noexcept {
  constexpr std::size_t kMostFailures = 64;  // waits for older work than that no longer tell
  std::lock_guard lock(mutex_);
  failures_.push_back({sequence, std::move(failure)});
  if (failures_.size() > kMostFailures) failures_.pop_front();
  failed_.store(true, std::memory_order_release);
}

std::shared_ptr<detail::Failure> CudaDevice::failure_of(std::uint64_t sequence, std::uint64_t caller) const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return nullptr;
  std::lock_guard lock(mutex_);
  for (const Failed& each : failures_) {
    if (each.since < sequence && each.failure->concerns(sequence, caller)) return each.failure;
  }
  return nullptr;
}

namespace {

const char* name_of(int op) {
  switch (op) {
    case report_gather:
      return "gather";
    case report_scatter_add:
      return "scatter_add";
    case report_index_select:
      return "index_select";
    case report_index_add:
      return "index_add";
    case report_max_unpool2d:
      return "max_unpool2d";
    case report_cross_entropy:
      return "cross_entropy";
    case report_attention:
      return "attention";
    case report_attention_grad:
      return "attention_grad";
    default:
      return "kernel";
  }
}

}  // namespace

void CudaDevice::surface_report(std::uint64_t callers, std::uint64_t caller) {
  if (!reports_) return;
  const int own = static_cast<int>(caller % kReports);
  for (std::uint64_t left = std::rotr(callers, own); left != 0; left &= left - 1)
    surface_report(reports_[(own + std::countr_zero(left)) % kReports]);
}

void CudaDevice::surface_report(KernelReport& report) {
  std::atomic_ref<int> ready(report.ready);
  if (ready.load(std::memory_order_acquire) == 0) [[likely]]
    return;
  std::lock_guard lock(mutex_);
  if (ready.load(std::memory_order_acquire) == 0) return;
  const KernelReport seen = report;
  ready.store(0, std::memory_order_relaxed);
  std::atomic_ref<int>(report.reported).store(0, std::memory_order_release);  // the next report may come
  throw InvalidArgument(
      cat("[", name_of(seen.op), "] expected indices in [0, ", seen.size, "), got ", seen.index, " (", device, ")"));
}

void CudaDevice::tell_loss() {
  const std::uint64_t who = lockstep::detail::caller();
  if (lost(device)) [[unlikely]] {
    std::lock_guard lock(mutex_);
    if (strangers_ == 0) {
      const lockstep::detail::CallerScope nobody(0);
      strangers_ = lockstep::detail::caller();
    }
    if (who >= strangers_ || !told_.insert(who).second) return;
    throw_if_lost(device);
  }
  // Any call with a context would do.
  try {
    const CurrentDevice current(device);
    void* mapped = nullptr;
    LOCKSTEP_CUDA(device, cudaHostGetDevicePointer(&mapped, reports_, 0));
  } catch (const DeviceError&) {
    if (lost(device)) tell_loss();  // else the error is not the waiting work's
  }
}

CudaDevice& cuda_device(Device device) { return *cuda_layout().devices[device.index()]; }

Ordinal ordinal_of(Device device) { return cuda_device(device).ordinal; }

int compute_capability_major(Device device) {
  int major = 0;
  LOCKSTEP_CUDA(
      device, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, static_cast<int>(ordinal_of(device))));
  return major;
}

KernelReport* kernel_report(Device device) {
  CudaDevice& found = cuda_device(device);
  found.start();
  return found.mapped_reports_ + lockstep::detail::caller() % kReports;
}

}  // namespace lockstep::cuda
