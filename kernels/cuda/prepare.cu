#include <atomic>

#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/kernel_report.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::kernels::cuda {
namespace {

std::vector<const void*> all_kernels() {
  KernelList list;
  for (ListKernels* const add : kAllLists) add(list);
  return list.all();
}

}  // namespace

void prepare(Device device) {
  static lockstep::detail::PerDevice<std::atomic<bool>> all;
  std::atomic<bool>& prepared = all[device];
  if (prepared.load(std::memory_order_acquire)) return;
  const lockstep::cuda::CurrentDevice current(device);
  // CUDA loads a kernel when it is first asked for, and loading may wait for everything that runs.
  {
    const lockstep::detail::GrowthLock alone;
    for (const void* kernel : all_kernels()) {
      cudaFuncAttributes attributes;
      LOCKSTEP_CUDA(device, cudaFuncGetAttributes(&attributes, kernel));
    }
  }
  lockstep::cuda::kernel_report(device);
  prepare_gemm(device);
  prepared.store(true, std::memory_order_release);  // twice, by two threads at first, does no harm
}

}  // namespace lockstep::kernels::cuda
