// The targets as libFuzzer calls them: LOCKSTEP_FUZZ_TARGET names one.
#include <cstddef>
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::LOCKSTEP_FUZZ_TARGET({data, bytes});  // what it must not throw ends the run
  return 0;
}
