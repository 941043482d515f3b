// Sorting positions by a key, equal keys in the order of the positions: what additions in index order need.
#pragma once

#include "lockstep/kernels/cuda/launch.cuh"

namespace lockstep::kernels::cuda {

struct Sorted {
  std::int64_t* keys;
  std::int64_t* positions;  // where each key stood
};

// Sorts keys[0 … count), which lie in [0, limit) and are overwritten. The result lives as long as `scratch`.
Sorted sort_keys(const Stream& stream, const char* op, std::int64_t* keys, std::int64_t count, std::int64_t limit,
                 Scratch& scratch);
// The same for keys that are unsigned numbers of so many bits, up to 64.
Sorted sort_bits(const Stream& stream, const char* op, std::int64_t* keys, std::int64_t count, int bits,
                 Scratch& scratch);

}  // namespace lockstep::kernels::cuda
