#include "lockstep/runtime/host/instruction_set.h"

#include <algorithm>
#include <string>

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"

namespace lockstep {
namespace detail {
namespace {

// What the whole library is compiled for.
#if defined(__AVX512F__)
constexpr InstructionSet kBaseline = InstructionSet::avx512;
#elif defined(__AVX2__)
constexpr InstructionSet kBaseline = InstructionSet::avx2;
#else
constexpr InstructionSet kBaseline = InstructionSet::automatic;  // has no name of its own
#endif

std::string list_of(const std::vector<InstructionSet>& sets) {
  std::string list;
  for (const InstructionSet set : sets) {
    if (set == InstructionSet::automatic) continue;
    if (!list.empty()) list += ", ";
    list += to_string(set);
  }
  return list.empty() ? "no choice" : list;
}

bool contains(const std::vector<InstructionSet>& sets, InstructionSet set) {
  return std::find(sets.begin(), sets.end(), set) != sets.end();
}

}  // namespace

const char* to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::automatic:
      break;
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
  }
  return "automatic";
}

InstructionSets instruction_sets() {
  InstructionSets sets{{kBaseline}, {kBaseline}};
#if defined(LOCKSTEP_HAVE_AVX512)
  sets.compiled.push_back(InstructionSet::avx512);
  // What x86-64-v4 is made of; it includes that the system keeps the registers.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.processor.push_back(InstructionSet::avx512);
#endif
  return sets;
}

InstructionSet choose_instruction_set(InstructionSet wanted, std::string_view text, const InstructionSets& sets) {
  if (wanted == InstructionSet::automatic) {
    if (text.empty()) return sets.processor.back();
    for (const InstructionSet named : {InstructionSet::avx2, InstructionSet::avx512})
      if (text == to_string(named)) wanted = named;
    if (wanted == InstructionSet::automatic)
      throw InvalidArgument(cat("[LOCKSTEP_CPU_ISA] expected avx2 or avx512, got \"", text, "\""));
  }
  if (!contains(sets.compiled, wanted))
    throw InvalidArgument(cat("[LOCKSTEP_CPU_ISA] expected instructions that this library was compiled for (",
                              list_of(sets.compiled), "), got ", to_string(wanted)));
  if (!contains(sets.processor, wanted))
    throw InvalidArgument(cat("[LOCKSTEP_CPU_ISA] expected instructions that this processor has (",
                              list_of(sets.processor), "), got ", to_string(wanted)));
  return wanted;
}

InstructionSet choose_instruction_set(const HostOptions& options) {
  return choose_instruction_set(options.instruction_set, environment("LOCKSTEP_CPU_ISA"), instruction_sets());
}

}  // namespace detail

InstructionSet host_instruction_set() {
  detail::device_table();  // from here on the options do not change
  static const InstructionSet chosen = detail::choose_instruction_set(detail::configured_host());
  return chosen;
}

}  // namespace lockstep
