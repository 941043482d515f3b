#include "lockstep/runtime/cuda/gpu_links.h"

#include <algorithm>
#include <limits>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_device.h"

namespace lockstep::cuda {
namespace {

// One in, one out, and two for peers.
constexpr int kEnginesOfLines = 4;

std::size_t gpus_in_use() {
  const CudaLayout& layout = cuda_layout();
  std::size_t count = 0;
  for (int i = 0; i < layout.count; ++i)
    count = std::max(count, static_cast<std::size_t>(layout.devices[i]->ordinal) + 1);
  return count;
}

std::vector<DeviceLink> ask() {
  const std::size_t gpus = gpus_in_use();
  std::vector<PeerAnswer> answers(gpus * gpus);
  int copy_engines = std::numeric_limits<int>::max();  // of each GPU at least
  for (std::size_t i = 0; i < gpus; ++i) {
    int engines = 0;
    LOCKSTEP_CUDA(Device::cuda(static_cast<int>(i)),
                  cudaDeviceGetAttribute(&engines, cudaDevAttrAsyncEngineCount, static_cast<int>(i)));
    copy_engines = std::min(copy_engines, engines);
    for (std::size_t j = 0; j < gpus; ++j) {
      if (i == j) continue;
      // The destination's copy stream fetches: it is the one that needs access.
      const auto attribute = [&](cudaDeviceP2PAttr wanted) {
        int value = 0;
        LOCKSTEP_CUDA(Device::cuda(static_cast<int>(i)),
                      cudaDeviceGetP2PAttribute(&value, wanted, static_cast<int>(j), static_cast<int>(i)));
        return value;
      };
      answers[i * gpus + j] = {.access = attribute(cudaDevP2PAttrAccessSupported) != 0,
                               .rank = attribute(cudaDevP2PAttrPerformanceRank),
                               .atomics = attribute(cudaDevP2PAttrNativeAtomicSupported) != 0};
    }
  }
  return gpu_links(answers, gpus, copy_engines);
}

}  // namespace

std::vector<DeviceLink> gpu_links(const std::vector<PeerAnswer>& answers, std::size_t gpus, int copy_engines) {
  bool same = true;
  for (std::size_t i = 0; i < gpus; ++i)
    for (std::size_t j = 0; j < gpus; ++j)
      if (i != j) same = same && answers[i * gpus + j] == answers[1];
  std::vector<DeviceLink> links(gpus * gpus);
  for (std::size_t i = 0; i < gpus; ++i)
    for (std::size_t j = 0; j < gpus; ++j) {
      const PeerAnswer& answer = answers[i * gpus + j];
      links[i * gpus + j] = i == j ? DeviceLink{.speed = 1, .distance = 0}
                            : !answer.access
                                ? DeviceLink{.speed = 0}
                                : DeviceLink{.speed = 1.0 / (1 + std::max(answer.rank, 0)),
                                             .own = answer.atomics && !same && copy_engines >= kEnginesOfLines,
                                             .shared = !answer.atomics};
    }
  return links;
}

DeviceLink link_between(int from, int to) {
  static const std::size_t gpus = gpus_in_use();
  static const std::vector<DeviceLink> links = ask();
  const auto gpu = [](int index) { return static_cast<std::size_t>(cuda_device(Device::cuda(index)).ordinal); };
  return links[gpu(from) * gpus + gpu(to)];
}

}  // namespace lockstep::cuda
