// Which instructions the kernels of host devices use.
#include "lockstep/runtime/host/instruction_set.h"

#include <algorithm>
#include <string>

#include "lockstep/runtime/error.h"
#include "support/catch.h"

using namespace lockstep;
using lockstep::detail::choose_instruction_set;
using lockstep::detail::InstructionSets;

namespace {
constexpr auto kAny = InstructionSet::automatic, kAvx2 = InstructionSet::avx2, kAvx512 = InstructionSet::avx512;
}

TEST_CASE("kernels use the widest instructions unless they are told", "[instruction_set]") {
  const InstructionSets both{{kAvx2, kAvx512}, {kAvx2, kAvx512}}, old{{kAvx2, kAvx512}, {kAvx2}};
  CHECK(choose_instruction_set(kAny, "", both) == kAvx512);
  CHECK(choose_instruction_set(kAny, "", old) == kAvx2);
  CHECK(choose_instruction_set(kAny, "avx2", both) == kAvx2);
  CHECK(choose_instruction_set(kAny, "avx512", both) == kAvx512);
  CHECK(choose_instruction_set(kAvx2, "", both) == kAvx2);
  CHECK(choose_instruction_set(kAvx2, "avx512", both) == kAvx2);  // the program knows better
  CHECK(choose_instruction_set(kAny, "", {{kAny}, {kAny}}) == kAny);
}

TEST_CASE("instructions that are not there are refused", "[instruction_set]") {
  const InstructionSets old{{kAvx2, kAvx512}, {kAvx2}}, narrow{{kAvx2}, {kAvx2}}, other{{kAny}, {kAny}};
  const auto message = [](auto&&... arguments) {
    try {
      choose_instruction_set(arguments...);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(kAny, "avx512", old) ==
        "[LOCKSTEP_CPU_ISA] expected instructions that this processor has (avx2), got avx512");
  CHECK(message(kAvx512, "", old) ==
        "[LOCKSTEP_CPU_ISA] expected instructions that this processor has (avx2), got avx512");
  CHECK(message(kAny, "avx512", narrow) ==
        "[LOCKSTEP_CPU_ISA] expected instructions that this library was compiled for (avx2), got avx512");
  CHECK(message(kAny, "avx2", other) ==
        "[LOCKSTEP_CPU_ISA] expected instructions that this library was compiled for (no choice), got avx2");
  CHECK(message(kAny, "sse", old) == "[LOCKSTEP_CPU_ISA] expected avx2 or avx512, got \"sse\"");
}

TEST_CASE("the instructions in use are among those that are there", "[instruction_set]") {
  const auto there = detail::instruction_sets().processor;
  CHECK(std::count(there.begin(), there.end(), host_instruction_set()) == 1);
}
