#include "lockstep/kernels/host/kernels.h"

namespace lockstep::kernels::host {

// The build compiles this file and some of the kernels once more, for wider instructions
// (scripts/cmake/wide_kernels.cmake): the same table, with those kernels in it.
#if !defined(LOCKSTEP_HOST_TABLE)
#define LOCKSTEP_HOST_TABLE baseline_table
#endif

const KernelTable& LOCKSTEP_HOST_TABLE() {
  static constexpr KernelTable kTable = [] {
    KernelTable table = table_of<Kernels>();
    table.takes_channels_last = true;
    table.normalizes_channels_last = true;
    return table;
  }();
  return kTable;
}

}  // namespace lockstep::kernels::host
