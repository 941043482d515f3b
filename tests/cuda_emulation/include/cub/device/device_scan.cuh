// In place of CUB's running sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

namespace cub {

struct DeviceScan {
  static inline std::int64_t scanned = 0;  // how many have been

  template <class Number>
  static cudaError_t InclusiveSum(void* memory, std::size_t& bytes, const Number* x, Number* y, std::int32_t count,
                                  cudaStream_t) {
    constexpr std::size_t kWanted = 700;
    if (!memory) {
      bytes = kWanted;
      return cudaSuccess;
    }
    if (bytes < kWanted || count < 1) return cudaErrorInvalidValue;
    std::memset(memory, 0x5a, kWanted);
    ++scanned;
    Number sum = 0;
    for (std::int32_t i = 0; i < count; ++i) y[i] = sum += x[i];
    return cudaSuccess;
  }
};

}  // namespace cub
