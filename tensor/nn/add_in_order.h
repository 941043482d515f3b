// A sum of several tensors in the order of a list. Private to the library.
#pragma once

#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Writes ((terms[0] + terms[1]) + …) to `out`, which may be one of the terms: all on one device, of one shape, dtype
// and layout. In one launch where the backend has it (`ordered_sum`); without it the terms hold sums afterwards. On the
// device's current stream; does not block.
void add_in_order(std::vector<Tensor> terms, Tensor out);

}  // namespace lockstep::detail
