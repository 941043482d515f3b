// Where memory of devices begins. Private to the library.
#pragma once

#include <cstddef>

namespace lockstep::detail {

// At multiples of so many bytes: raw memory (Backend::allocate, MemoryResource), and each block of it. Who puts several
// things into one block begins each there too: kernels take it in whole vectors, as a block of its own, and no two
// share a cache line or sector.
inline constexpr std::size_t kMemoryAlignment = 256;

// From the beginning of a thing of so many bytes to that of the next one.
constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

}  // namespace lockstep::detail
