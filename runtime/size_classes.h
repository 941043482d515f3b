// The sizes in which the caching allocator hands out memory: multiples of 256 bytes, four per doubling from 1 KiB on,
// so that a block is at most a quarter larger than what was asked for (below 1 KiB: 255 bytes). Private to the library.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace lockstep::detail {

inline constexpr std::size_t kGranuleBytes = 256;
inline constexpr std::size_t kLargestBytes = std::size_t{1} << 48;  // more than any address space can give

constexpr int size_class(std::size_t bytes) {  // bytes <= kLargestBytes
  const std::uint64_t granules = (bytes + kGranuleBytes - 1) / kGranuleBytes;
  if (granules <= 4) return granules == 0 ? 0 : static_cast<int>(granules) - 1;
  const int shift = std::bit_width(granules - 1) - 3;  // leaves the three leading bits
  return 4 * shift + static_cast<int>((granules - 1) >> shift);
}

constexpr std::size_t class_bytes(int index) {
  if (index < 4) return static_cast<std::size_t>(index + 1) * kGranuleBytes;
  const int shift = index / 4 - 1;
  return (static_cast<std::size_t>(index % 4 + 5) << shift) * kGranuleBytes;
}

// The largest class that fits into so many bytes, which are at least a granule.
constexpr int fitting_class(std::size_t bytes) { return size_class(bytes + 1) - 1; }

inline constexpr int kSizeClasses = size_class(kLargestBytes) + 1;
static_assert(kSizeClasses <= 256, "MemoryBlock::bin is one byte");

// Classes up to this one are carved out of segments, larger blocks are raw allocations of their own.
inline constexpr std::size_t kSegmentBytes = std::size_t{2} << 20;
inline constexpr int kLargestCarvedClass = size_class(std::size_t{256} << 10);

}  // namespace lockstep::detail
