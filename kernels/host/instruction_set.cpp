// Which kernels host devices use.
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/runtime/host/host_options.h"

namespace lockstep::kernels::host {

const KernelTable& kernel_table() {
  static const KernelTable& table = []() -> const KernelTable& {
#if defined(LOCKSTEP_HAVE_AVX512)
    if (host_instruction_set() == InstructionSet::avx512) return avx512_table();
#endif
    return baseline_table();
  }();
  return table;
}

}  // namespace lockstep::kernels::host
