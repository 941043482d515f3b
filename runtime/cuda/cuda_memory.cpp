#include "lockstep/runtime/cuda/cuda_memory.h"

#include <vector>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/cuda/patience.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/environment.h"

namespace lockstep::cuda {
namespace {

bool pool_wanted() {
  const std::string_view text = detail::environment("LOCKSTEP_CUDA_MEMORY");
  LOCKSTEP_CHECK(text.empty() || text == "device" || text == "pool",
                 "[LOCKSTEP_CUDA_MEMORY] expected device or pool, got \"", text, "\"");
  return text == "pool";
}

void check_has_pools(Device device) {
  int supported = 0;
  LOCKSTEP_CUDA(device, cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported,
                                               static_cast<int>(ordinal_of(device))));
  if (!supported) {
    throw NotSupported(cat("[LOCKSTEP_CUDA_MEMORY] expected a GPU with memory pools for pool, got ", device, " (",
                           properties(device).name, "), which has none: use device"));
  }
}

// Other GPUs in use that can be given access to the memory of this one.
std::vector<cudaMemAccessDesc> reaching(Device device) {
  std::vector<cudaMemAccessDesc> list;
  const int own = static_cast<int>(ordinal_of(device));
  for (int i = 0; i < cuda_layout().count; ++i) {
    const int other = static_cast<int>(cuda_layout().devices[i]->ordinal);
    if (other != i) break;  // each GPU's first logical device comes before the second ones
    int possible = 0;
    if (other != own) LOCKSTEP_CUDA(device, cudaDeviceCanAccessPeer(&possible, other, own));
    if (possible) list.push_back({{cudaMemLocationTypeDevice, other}, cudaMemAccessFlagsProtReadWrite});
  }
  return list;
}

bool none_left(cudaError_t result) {
  if (result != cudaErrorMemoryAllocation) return false;
  (void)cudaGetLastError();
  return true;
}

void forget(cudaError_t result) {
  if (result != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace

void CudaMemory::start(Device device) {
  if (pool_ || !pool_wanted()) return;
  check_has_pools(device);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, static_cast<int>(ordinal_of(device))};
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;
  try {
    LOCKSTEP_CUDA(device, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    LOCKSTEP_CUDA(device, cudaMemPoolCreate(&pool, &properties));
    const std::vector<cudaMemAccessDesc> others = reaching(device);
    if (!others.empty()) LOCKSTEP_CUDA(device, cudaMemPoolSetAccess(pool, others.data(), others.size()));
  } catch (...) {
    if (pool) forget(cudaMemPoolDestroy(pool));
    if (stream) forget(cudaStreamDestroy(stream));
    throw;
  }
  pool_ = pool;
  stream_ = stream;
}

void* CudaMemory::allocate(Device device, std::size_t bytes) {
  void* memory = nullptr;
  if (!pool_) {
    const cudaError_t result = cudaMalloc(&memory, bytes);
    if (none_left(result)) return nullptr;
    check(result, device, "cudaMalloc");
    return memory;
  }
  const cudaError_t result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
  if (none_left(result)) return nullptr;
  check(result, device, "cudaMallocFromPoolAsync");
  // There is nothing else on the stream.
  try {
    const Deadline deadline = Deadline::after(kDefaultTimeout);
    for (Patience patience; !ready(cudaStreamQuery(stream_), device, "cudaStreamQuery"); patience.pass()) {
      if (deadline.passed())
        throw TimeoutError(cat("[allocate] expected ", bytes, " bytes of the memory pool of ", device, " in time"));
    }
  } catch (...) {
    forget(cudaFreeAsync(memory, stream_));
    throw;
  }
  return memory;
}

void CudaMemory::free(void* memory) noexcept {
  forget(cudaFree(memory));  // of a pool's it takes the caller's word that nothing uses it
  if (pool_) forget(cudaMemPoolTrimTo(pool_, 0));
}

}  // namespace lockstep::cuda
