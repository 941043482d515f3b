// Which of the instruction sets that the library was compiled for its kernels on host devices use.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/runtime/host/host_options.h"

namespace lockstep::detail {

const char* to_string(InstructionSet set);

// What there is to choose from, the narrowest first. `compiled`: in the library, never empty on a processor with
// several. `processor`: those of them that the processor has.
struct InstructionSets {
  std::vector<InstructionSet> compiled, processor;
};
InstructionSets instruction_sets();

// `wanted`; automatic: the one that `text` names; neither: the widest there is. Throws InvalidArgument when it is not
// there to be chosen.
InstructionSet choose_instruction_set(InstructionSet wanted, std::string_view text, const InstructionSets& sets);
// What the options and the environment choose.
InstructionSet choose_instruction_set(const HostOptions& options);

}  // namespace lockstep::detail
