// A sum of several tensors in the order of a list. Private to the library.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Of a piece of such a sum where work is done at once: nothing overlaps, and what is in the cache is what counts.
inline constexpr std::size_t kCachedPieceBytes = 128 << 10;

// Writes ((terms[0] + terms[1]) + …) to `out`, which may be one of the terms: all on one device, of one shape, dtype
// and layout. In one launch where the backend has it (`ordered_sum`); without it the terms hold sums afterwards. On the
// device's current stream; does not block.
void add_in_order(std::vector<Tensor> terms, Tensor out);

}  // namespace lockstep::detail
