// A sum of what lies on several devices, formed on the way along them. Private to the library.
#pragma once

#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// True where sum_along_chain can bring the sum of `parts` to `home`: devices of one kind, of which only the first may
// be home.
bool sums_along_chain(const std::vector<Tensor>& parts, Device home);

// Writes ((parts[0] + parts[1]) + …) to `sum`. Each part lies on a device of its own; all are flat, contiguous, of one
// dtype and as long as `sum`. Every device receives the sum of those before it, adds its part and passes it on, piece
// by piece: each link carries the bytes once, all links at the same time. Does not block; work that is enqueued later
// on the current streams of the devices comes after it.
void sum_along_chain(const std::vector<Tensor>& parts, const Tensor& sum);

}  // namespace lockstep::detail
