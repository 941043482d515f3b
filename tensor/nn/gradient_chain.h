// A sum of what lies on several devices, formed on the way along them. Private to the library.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/tensor/nn/section_sum.h"

namespace lockstep::detail {

// True where a chain can bring the sum of `parts` to `home`: devices of one kind, of which only the first may be home.
bool sums_along_chain(const std::vector<Tensor>& parts, Device home);

// Of sections that are `count` elements together. Every device receives the sum of those before it, adds it to its part
// and passes that on, piece by piece: each link carries the bytes once, all links at the same time. On a mesh of lines
// pieces go on several lanes (hop_lanes).
std::unique_ptr<SectionSum> chain_sum(const std::vector<Device>& devices, Device home, DType dtype, std::int64_t count);

// The sum of one section.
void sum_along_chain(const std::vector<Tensor>& parts, const Tensor& sum);

}  // namespace lockstep::detail
