#include <atomic>

#include "lockstep/kernels/cuda/cuda_table.h"
#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/kernel_report.h"

namespace lockstep::kernels::cuda {
namespace {

std::vector<const void*> all_kernels() {
  KernelList list;
  for (const auto add :
       {list_unary,     list_binary,         list_copy,     list_cast,          list_reduce, list_batch_norm,
        list_softmax,   list_group_norm,     list_resample, list_cross_entropy, list_cumsum, list_argsort,
        list_attention, list_attention_grad, list_cells,    list_pool,          list_index,  list_sort,
        list_random,    list_optimizer,      list_adam,     list_matmul,        list_conv,   list_depthwise})
    add(list);
  return list.all();
}

}  // namespace

void prepare(Device device) {
  static std::atomic<bool> prepared[kMaxDevices];
  if (prepared[device.index()].load(std::memory_order_acquire)) return;
  const lockstep::cuda::CurrentDevice current(device);
  // CUDA loads a kernel when it is first asked for, and loading may wait for everything that runs.
  for (const void* kernel : all_kernels()) {
    cudaFuncAttributes attributes;
    LOCKSTEP_CUDA(device, cudaFuncGetAttributes(&attributes, kernel));
  }
  lockstep::cuda::kernel_report(device);
  prepare_gemm(device);
  prepared[device.index()].store(true, std::memory_order_release);  // twice, by two threads at first, does no harm
}

}  // namespace lockstep::kernels::cuda
