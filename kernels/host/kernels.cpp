#include "lockstep/kernels/host/kernels.h"

namespace lockstep::kernels::host {

const KernelTable& kernel_table() {
  static constexpr KernelTable kTable = table_of<Kernels>();
  return kTable;
}

}  // namespace lockstep::kernels::host
