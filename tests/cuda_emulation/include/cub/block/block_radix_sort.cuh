// In place of CUB's sort by the threads of a block: the first of them sorts.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "lockstep/kernels/cuda/launch.cuh"

namespace cub {

template <class Key, int kThreads, int kItems, class Value>
class BlockRadixSort {
 public:
  using TempStorage = std::array<std::pair<Key, Value>, kThreads * kItems>;

  explicit BlockRadixSort(TempStorage& shared) : shared_(shared) {}

  // From a thread's neighbours, to every kThreads-th; by the bits from `begin` to before `end`.
  void SortBlockedToStriped(Key (&keys)[kItems], Value (&values)[kItems], int begin, int end) {
    if (begin < 0 || begin >= end || end > static_cast<int>(sizeof(Key) * 8))
      throw std::logic_error("BlockRadixSort: bits");
    if (blockDim.x != kThreads || blockDim.y != 1 || blockDim.z != 1) throw std::logic_error("BlockRadixSort: threads");
    const auto thread = static_cast<int>(threadIdx.x);
    for (int k = 0; k < kItems; ++k) shared_[thread * kItems + k] = {keys[k], values[k]};
    __syncthreads();
    if (thread == 0) {
      const Key mask = static_cast<Key>(static_cast<Key>(~Key(0)) >> (sizeof(Key) * 8 - static_cast<std::size_t>(end)));
      std::stable_sort(shared_.begin(), shared_.end(), [&](const auto& a, const auto& b) {
        return (a.first & mask) >> begin < (b.first & mask) >> begin;
      });
    }
    __syncthreads();
    for (int k = 0; k < kItems; ++k) std::tie(keys[k], values[k]) = shared_[k * kThreads + thread];
  }

 private:
  TempStorage& shared_;
};

}  // namespace cub
