#include "lockstep/kernels/cuda/kernels.h"

namespace lockstep::kernels::cuda {

const KernelTable& kernel_table() {
  static constexpr KernelTable kTable = [] {
    KernelTable table = table_of<Kernels>();
    table.prepare = prepare;
    table.takes_channels_last = true;
    return table;
  }();
  return kTable;
}

}  // namespace lockstep::kernels::cuda
