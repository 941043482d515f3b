// Reductions of several ranks' elements in host memory, at the memory's speed.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/kernels/dtype.h"
#include "lockstep/parallel/comm/collective.h"

namespace lockstep {

// Combines `count` elements of every input, element by element in the order of the inputs (see RedOp; a NaN stays
// a NaN in max and min; integers wrap), and writes the result to every output. An output may be the very memory of an
// input; otherwise nothing overlaps. How a message is cut into calls makes no difference. At least one input.
LOCKSTEP_API void host_reduce(RedOp reduction, DType dtype, std::span<const void* const> inputs,
                              std::span<void* const> outputs, std::int64_t count);

}  // namespace lockstep
