// A sum of what lies on several devices, of which each sums a share. Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/tensor/nn/section_sum.h"

namespace lockstep::detail {

// True where sum_by_owners brings the sum of `parts` to `home` sooner than a chain does: devices of one kind, of which
// only the first may be home. A function of the devices and the size alone.
bool sums_by_owners(const std::vector<Tensor>& parts, Device home);

// In how many rounds an owner best sums its share of `bytes`, where `places` devices take part, home among them: at
// least 1.
std::size_t owner_rounds(std::size_t bytes, std::size_t places);

// Of sections of `longest` elements at most. The devices besides home own a share of each: in every round an owner
// receives a piece of all other parts, sums them, and home takes the sum. So every link carries the bytes once in each
// direction. A section is a round (a longer one several), and home takes its sum while the owners receive the next. Of
// two devices home owns all, and sums what arrives.
std::unique_ptr<SectionSum> owner_sum(const std::vector<Device>& devices, Device home, DType dtype,
                                      std::int64_t longest);

// The sum of one section, in `rounds` rounds: a request, 0 for owner_rounds; pieces are whole units of memory, and of a
// fixed size where work is done at once.
void sum_by_owners(const std::vector<Tensor>& parts, const Tensor& sum, std::size_t rounds = 0);

}  // namespace lockstep::detail
