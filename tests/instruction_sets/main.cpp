// The tests of the kernels with those for AVX-512 on the cpu device and the baseline's on host devices: what compares a
// device with the host (support/parity.h) compares the bits of the two.
#include <algorithm>
#include <cstdio>

#include "lockstep/kernels/api.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/runtime/host/instruction_set.h"
#include "support/parity.h"
#include "support/run_tests.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const auto there = detail::instruction_sets().processor;
  if (std::find(there.begin(), there.end(), InstructionSet::avx512) == there.end()) {
    std::puts("skipped: this processor has no AVX-512 (x86-64-v4)");
    return 77;
  }
  kernels::detail::install_table(DeviceType::cpu, kernels::host::avx512_table());
  kernels::detail::install_table(DeviceType::host, kernels::host::baseline_table());
  support::parity_is_exact = true;
  return support::run_tests(argc, argv);
}
