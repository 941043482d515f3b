// A sum of what lies on several devices, formed on the way along them. Private to the library.
#pragma once

#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// True where sum_along_chain can bring the sum of `parts` to `home`: devices of one kind, of which only the first may
// be home.
bool sums_along_chain(const std::vector<Tensor>& parts, Device home);

// Writes ((parts[0] + parts[1]) + …) to `sum`, with the bits of separate additions. Each part lies on a device of its
// own; all are flat, contiguous, of one dtype and as long as `sum`. Every device receives the sum of those before it,
// adds it to its part and passes that on, piece by piece: each link carries the bytes once, all links at the same time.
// On a mesh of lines pieces go on several lanes (hop_lanes). What the parts but the first hold afterwards is not
// specified. Does not block; work that is enqueued later on the current streams of the devices comes after it.
void sum_along_chain(const std::vector<Tensor>& parts, const Tensor& sum);

}  // namespace lockstep::detail
