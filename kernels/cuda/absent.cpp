// In place of kernels/cuda/ in a build without CUDA.
#include "lockstep/kernels/table.h"
#include "lockstep/runtime/error.h"

namespace lockstep::kernels::cuda {

const KernelTable& kernel_table() {
  lockstep::detail::fail<NotSupported>("[kernels] expected a cpu or host device, got cuda: no CUDA in this build");
}

}  // namespace lockstep::kernels::cuda
