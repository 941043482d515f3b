// A sum of what lies on several devices, of which each sums a share. Private to the library.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// True where sum_by_owners brings the sum of `parts` to `home` sooner than a chain does: devices of one kind, of which
// only the first may be home. A function of the devices and the size alone.
bool sums_by_owners(const std::vector<Tensor>& parts, Device home);

// In how many rounds an owner best sums its share of `bytes`, where `places` devices take part, home among them: at
// least 1.
std::size_t owner_rounds(std::size_t bytes, std::size_t places);

// Writes ((parts[0] + parts[1]) + …) to `sum`, with the bits of separate additions. Each part lies on a device of its
// own; all are flat, contiguous, of one dtype and as long as `sum`. The devices besides home own a share each: in every
// round an owner receives a piece of all other parts, sums them, and home takes the sum. So every link carries the
// bytes once in each direction. Of two devices home owns all, and sums what arrives. What the parts of owners hold
// afterwards is not specified. `rounds` is a request, 0 for owner_rounds: pieces are whole units of memory, and of a
// fixed size where work is done at once. Does not block; work that is enqueued later on the current streams of the
// devices comes after it.
void sum_by_owners(const std::vector<Tensor>& parts, const Tensor& sum, std::size_t rounds = 0);

}  // namespace lockstep::detail
