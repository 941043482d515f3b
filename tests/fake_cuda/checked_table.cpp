#include "fake_cuda/checked_table.h"

#include "fake_cuda/fake_cuda.h"
#include "lockstep/kernels/table.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

using lockstep::KernelTable;
using lockstep::View;

// From the first byte to behind the last one; 0 without elements.
std::size_t extent_bytes(const View& view) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank(); ++d) {
    if (view.shape[d] == 0) return 0;
    last += (view.shape[d] - 1) * view.strides[d];
  }
  return static_cast<std::size_t>(last + 1) * lockstep::size_of(view.dtype);
}

// Logical devices on one GPU have its memory in common, and must not use each other's all the same. Memory that is none
// of theirs came from outside (DLPack).
bool check_owner(const char* kernel, const lockstep::Stream& stream, const View& view) {
  const lockstep::cuda::CudaLayout& layout = lockstep::cuda::cuda_layout();
  const lockstep::Device device = stream.device();
  if (extent_bytes(view) == 0) return true;
  for (int i = 0; i < layout.count; ++i) {
    if (i == device.index() || !layout.devices[i]->owns(view.data)) continue;
    record_failure(
        Rule::foreign_memory, kernel,
        lockstep::cat("an operand: expected memory that ", device, " allocated, got ", lockstep::Device::cuda(i), "'s"),
        device.index(), lockstep::cuda::native(stream));
    return false;
  }
  return true;
}

template <class Args>
void run_checked(const lockstep::Stream& stream, const Args& args) {
  bool sound = true;
  args.views([&](const auto& use) {
    if (!use.view.present) return;
    sound = sound &&
            check_kernel_memory(Args::kName, lockstep::cuda::native(stream), use.view.data, extent_bytes(use.view)) &&
            check_owner(Args::kName, stream, use.view);
  });
#ifndef __SANITIZE_THREAD__  // whose build has no CUDA kernels
  // What the real kernel refuses, it refuses before anything runs.
  lockstep::kernels::cuda::kernel_table().entry<Args>()(stream, args);
#endif
  if (sound) lockstep::kernels::host::kernel_table().entry<Args>()(stream, args);
}

// A null entry stays one: the device has no such kernel.
template <class... Args>
KernelTable checked(lockstep::ArgsList<Args...>) {
#ifdef __SANITIZE_THREAD__
  KernelTable made = lockstep::kernels::host::kernel_table();
#else
  KernelTable made = lockstep::kernels::cuda::kernel_table();
#endif
  ((made.entry<Args>() = made.entry<Args>() ? run_checked<Args> : nullptr), ...);
  return made;
}

}  // namespace

const KernelTable& checked_table() {
  static const KernelTable table = checked(lockstep::AllArgs());
  return table;
}

}  // namespace fake_cuda
