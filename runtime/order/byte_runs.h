// The exact bytes of a strided use of memory, as runs without gaps. Private to the library.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/runtime/order/order.h"

namespace lockstep::detail {

struct ByteRun {
  std::uintptr_t begin, end;
};

inline std::uintptr_t address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// The smallest run that holds the whole use; empty when it has no elements.
ByteRun bounds_of(const MemoryUse& use);

// Appends the runs of a use that has elements, at most kMostRuns; false, and nothing appended, when there are more.
inline constexpr std::int64_t kMostRuns = 1 << 16;
bool append_runs(const MemoryUse& use, std::vector<ByteRun>& runs);

}  // namespace lockstep::detail
