#include "fake_cuda/library_retained.h"

#include "lockstep/kernels/cuda/cudnn_conv.h"
#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/retained.h"
#include "lockstep/tensor/data/transfer.h"

namespace fake_cuda {

Alive library_retained() {
  using namespace lockstep;
  const cuda::CudaLayout& layout = cuda::cuda_layout();
  Alive all;
  for (int i = 0; i < layout.count; ++i) {
    if (!layout.devices[i]->started()) continue;
    const Device device = Device::cuda(i);
    detail::Retained kept{.pinned = 1};  // where kernels report
    kept += detail::retained_staging(device);
    kept += detail::retained_transfers(device);
    all.pinned_allocations += kept.pinned;
    if (cuda::lost(device)) {  // what is the device's went with the context
      all.events += detail::retained_uses(device).events;
      continue;
    }
    try {
      empty_cache(device);
    } catch (const Error&) {  // that nobody has waited for
      empty_cache(device);
    }
    kept += detail::retained_streams(device);
    kept.streams += layout.devices[i]->pooled();  // of the pool of its memory
    all.handles += layout.devices[i]->pooled();
    all.streams += kept.streams;
    all.events += kept.events;
#ifndef __SANITIZE_THREAD__  // whose build has no CUDA kernels
    all.handles += kernels::cuda::retained_handles(device) + kernels::cuda::retained_cudnn(device);
#endif
  }
  return all;
}

}  // namespace fake_cuda
