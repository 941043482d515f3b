// In place of CUB's sort by a whole device. It asks for scratch memory and uses it, and leaves the result on the side
// that a pass for every eight bits leaves it on.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cub {

template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;

  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() const { return d_buffers[selector]; }
  T* Alternate() const { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
  static inline std::int64_t sorted = 0;  // how many have been

  template <class Key>
  static cudaError_t SortKeys(void* memory, std::size_t& bytes, DoubleBuffer<Key>& keys, std::int64_t count, int begin,
                              int end, cudaStream_t) {
    constexpr std::size_t kWanted = 1000;
    if (begin < 0 || begin > end || end > static_cast<int>(sizeof(Key) * 8)) return cudaErrorInvalidValue;
    if (!memory) {
      bytes = kWanted;
      return cudaSuccess;
    }
    if (bytes < kWanted || !keys.Alternate() || keys.Alternate() == keys.Current()) return cudaErrorInvalidValue;
    std::memset(memory, 0x5a, kWanted);
    ++sorted;
    if (begin == end) return cudaSuccess;
    const Key mask = static_cast<Key>(static_cast<Key>(~Key(0)) >> (sizeof(Key) * 8 - static_cast<std::size_t>(end)));
    std::stable_sort(keys.Current(), keys.Current() + count,
                     [&](Key a, Key b) { return (a & mask) >> begin < (b & mask) >> begin; });
    if ((end - begin + 7) / 8 % 2 == 1) {
      std::memcpy(keys.Alternate(), keys.Current(), static_cast<std::size_t>(count) * sizeof(Key));
      std::memset(keys.Current(), 0xa5, static_cast<std::size_t>(count) * sizeof(Key));
      keys.selector ^= 1;
    }
    return cudaSuccess;
  }
};

}  // namespace cub
