// The functions of CUB, which comes with the toolkit, that work of the whole device goes through.
#pragma once

#include <bit>

#include "lockstep/kernels/cuda/launch.cuh"

namespace lockstep::kernels::cuda {

// Bits of numbers in [0, limit).
inline int bits_below(std::int64_t limit) {
  return std::bit_width(static_cast<std::uint64_t>(limit > 1 ? limit - 1 : 0));
}

// Numbers with the position of what they were made of in the lowest bits, so that one array is all that moves.
struct Tagged {
  std::uint64_t* keys;
  int position_bits;  // below 64

  LOCKSTEP_HD std::uint64_t number(std::int64_t i) const { return keys[i] >> position_bits; }
  LOCKSTEP_HD std::int64_t position(std::int64_t i) const {
    return static_cast<std::int64_t>(keys[i] & ((std::uint64_t{1} << position_bits) - 1));
  }
};

// Sorts keys[0 … count) by the lowest `bits` of their numbers, equal ones in the order in which they stand: a radix
// sort. `spare` has as much memory; keys.keys and spare may have changed places afterwards.
void sort(const Stream& stream, const char* op, Tagged& keys, std::uint64_t*& spare, std::int64_t count, int bits,
          Scratch& scratch);

// y[i] = x[0] + … + x[i], modulo 2^64. x and y may be the same. (With a count of 64 bits its kernel would move a
// few registers to the stack.)
void running_sums(const Stream& stream, const char* op, const std::int64_t* x, std::int64_t* y, std::int32_t count);

}  // namespace lockstep::kernels::cuda
