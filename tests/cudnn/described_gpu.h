// A GPU that is described to cuDNN (9.8 and later), and need not be there.
#pragma once

#include <cstdio>
#include <string>

#include "lockstep/kernels/cuda/cudnn.h"
#include "lockstep/runtime/strings.h"

namespace described_gpu {

using namespace lockstep;

inline constexpr int kSkipped = 77;  // the exit status

// As cuDNN writes one down: the H200's numbers, of another compute capability if need be.
inline cudnn::Descriptor describe(const cudnn::Library& library, int capability = 900) {
  const std::string text = cat(R"({"deviceVer": )", capability, R"(, "driverVer": 13000, "cudaDeviceId": 0,
"totalGlobalMem": 150000000000, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
"maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
"supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
"deviceName": "NVIDIA H200"})");
  cudnn::Descriptor gpu = nullptr;
  if (library.descriptor_create(cudnn::kDeviceProperties, &gpu) != cudnn::kSuccess ||
      library.set(gpu, cudnn::kDeviceJson, cudnn::kTypeChar, static_cast<std::int64_t>(text.size()), text.data()) !=
          cudnn::kSuccess ||
      library.finalize(gpu) != cudnn::kSuccess)
    return nullptr;
  return gpu;
}

// Null, with a line that says so, where cuDNN is none, or older.
inline const cudnn::Library* library_since(std::size_t version) {
  const cudnn::Library* library = cudnn::library();
  if (library && library->version() >= version) return library;
  std::printf("skipped: cuDNN %zu.%zu or later expected, %s found\n", version / 10000, version / 100 % 100,
              library ? std::to_string(library->version()).c_str() : "none");
  return nullptr;
}

}  // namespace described_gpu
