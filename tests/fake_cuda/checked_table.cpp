#include "fake_cuda/checked_table.h"

#include "fake_cuda/fake_cuda.h"
#include "lockstep/kernels/cuda/cuda_table.h"
#include "lockstep/kernels/host/host_table.h"
#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

using lockstep::Kernel;
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
bool check_owner(const char* kernel, lockstep::Stream& stream, const View& view) {
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

template <auto entry>
struct Checked;
template <class Args, Kernel<Args> KernelTable::*entry>
struct Checked<entry> {
  static void run(lockstep::Stream& stream, const Args& args) {
    bool sound = true;
    args.views([&](const auto& use) {
      if (!use.view.present) return;
      sound = sound &&
              check_kernel_memory(Args::kName, lockstep::cuda::native(stream), use.view.data, extent_bytes(use.view)) &&
              check_owner(Args::kName, stream, use.view);
    });
    // What the real entry refuses, it refuses before anything runs.
    (lockstep::kernels::cuda::cuda_table().*entry)(stream, args);
    if (sound) (lockstep::kernels::host::host_table().*entry)(stream, args);
  }
};

// A null entry stays one: the device has no such kernel.
template <auto... entries>
KernelTable table_of() {
  KernelTable made;
  const KernelTable& real = lockstep::kernels::cuda::cuda_table();
  ((made.*entries = real.*entries ? Checked<entries>::run : nullptr), ...);
  made.prepare = real.prepare;
  return made;
}

}  // namespace

const KernelTable& checked_table() {
  using T = KernelTable;
  static const KernelTable table =
      table_of<&T::unary, &T::binary, &T::where, &T::cast, &T::fill, &T::arange, &T::reduce, &T::arg_reduce, &T::matmul,
               &T::conv2d, &T::conv2d_grad_input, &T::conv2d_grad_weight, &T::max_pool2d, &T::max_unpool2d,
               &T::avg_pool2d, &T::avg_pool2d_grad, &T::batch_norm, &T::batch_norm_grad, &T::softmax, &T::softmax_grad,
               &T::group_norm, &T::group_norm_grad, &T::resample2d, &T::cross_entropy, &T::cross_entropy_grad,
               &T::cumsum, &T::argsort, &T::attention, &T::attention_grad, &T::lstm_cell, &T::lstm_cell_grad,
               &T::gru_cell, &T::gru_cell_grad, &T::gather, &T::scatter_add, &T::index_select, &T::index_add,
               &T::random, &T::sgd, &T::adam, &T::unscale>();
  return table;
}

}  // namespace fake_cuda
