#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/current_device.h"

namespace lockstep::kernels::cuda::detail {
namespace {

[[noreturn, gnu::cold]] void fail_grid(const char* op, Device device, const Grid& g) {
  throw DeviceError(
      device, 0,
      cat("[", op, "] expected a grid within the limits of CUDA, got ", g.blocks.x, " x ", g.blocks.y, " x ",
          g.blocks.z, " blocks of ", g.threads.x, " x ", g.threads.y, " x ", g.threads.z, " threads on ", device));
}

bool fits(const Grid& g) {
  const unsigned long long threads = 1ull * g.threads.x * g.threads.y * g.threads.z;
  return threads >= 1 && threads <= 1024 && g.threads.z <= 64 && g.blocks.x >= 1 && g.blocks.x <= 0x7fffffffu &&
         g.blocks.y >= 1 && g.blocks.y <= 65535 && g.blocks.z >= 1 && g.blocks.z <= 65535;
}

}  // namespace

void launch(const Stream& stream, const char* op, const void* kernel, const Grid& grid, void** parameters) {
  const Device device = stream.device();
  if (!fits(grid)) [[unlikely]]
    fail_grid(op, device, grid);
  const lockstep::cuda::CurrentDevice current(device);
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (grid.shared_bytes > kWithoutAsking) {
    int most = 0;
    LOCKSTEP_CUDA(device, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                 static_cast<int>(lockstep::cuda::ordinal_of(device))));
    if (grid.shared_bytes > static_cast<std::size_t>(most)) [[unlikely]]
      lockstep::detail::fail<NotSupported>("[", op, "] expected a problem whose blocks need at most the ", most,
                                           " bytes of shared memory that ", device, " has, got one that needs ",
                                           grid.shared_bytes);
    // Each time: the setting belongs to the device, and the call costs less than remembering for which it was made.
    LOCKSTEP_CUDA(device, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(grid.shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = lockstep::cuda::native(stream);
  const cudaError_t result = cudaLaunchKernelExC(&config, kernel, parameters);
  if (result == cudaSuccess) [[likely]]
    return;
  lockstep::cuda::check(result, device, cat("cudaLaunchKernelExC for ", op).c_str());
}

}  // namespace lockstep::kernels::cuda::detail
