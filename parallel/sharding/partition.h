// Whole things among ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

// The rank of each thing: the largest first (of equal ones the first), each to the rank that has the least so far (of
// equal ones the lowest). `totals` is what the ranks have, and is brought up to date.
LOCKSTEP_API std::vector<int> partition_by_size(std::span<const std::int64_t> sizes, std::vector<std::int64_t>& totals);

}  // namespace lockstep
