// The lists of devices over which everything that works on several devices is tested. They want 8 devices,
// of which number 6 has less memory than the others (host_devices.h, or a setup of the program's own).
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "lockstep/runtime/device.h"
#ifdef LOCKSTEP_TESTS_ON_CUDA
#include "support/cuda_devices.h"
#endif

namespace support {

// The programs on CUDA devices say LOCKSTEP_TESTS_ON_CUDA: there the same lists are of those, and a case that names a
// device which is not there is skipped.
inline lockstep::Device numbered_device(int index) {
#ifdef LOCKSTEP_TESTS_ON_CUDA
  return cuda_device(index);
#else
  return lockstep::Device::host(index);
#endif
}

inline std::vector<lockstep::Device> hosts(std::initializer_list<int> indices) {
  std::vector<lockstep::Device> devices;
  for (const int index : indices) devices.push_back(numbered_device(index));
  return devices;
}
inline std::vector<lockstep::Device> hosts(int count) {
  std::vector<lockstep::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(numbered_device(i));
  return devices;
}

// True but for CUDA devices: there may be fewer of them.
inline bool device_exists([[maybe_unused]] int index) {
#ifdef LOCKSTEP_TESTS_ON_CUDA
  return index < cuda_device_count();
#else
  return true;
#endif
}

// For what expects device 6 to have less memory and device 7 fewer multiprocessors than the others.
inline void needs_unequal_devices() {
#ifdef LOCKSTEP_TESTS_ON_CUDA
  if (lockstep::properties(cuda_device(6)).total_memory_bytes ==
          lockstep::properties(cuda_device(0)).total_memory_bytes ||
      lockstep::properties(cuda_device(7)).multiprocessors == lockstep::properties(cuda_device(0)).multiprocessors) {
    skip("unequal devices expected, equal ones found");
  }
#endif
}

// 1, 2, 3, 5 and 8 devices; shuffled ones, which have another home than the first device; unequal memories. Without
// those that name devices which are not there.
inline const std::vector<std::vector<lockstep::Device>>& device_sets() {
  static const auto sets = [] {
    std::vector<std::vector<lockstep::Device>> made;
    for (const auto& indices : std::initializer_list<std::initializer_list<int>>{{0},
                                                                                 {0, 1},
                                                                                 {0, 1, 2},
                                                                                 {0, 1, 2, 3, 4},
                                                                                 {0, 1, 2, 3, 4, 5, 6, 7},
                                                                                 {2},
                                                                                 {3, 1},
                                                                                 {4, 0, 2},
                                                                                 {6, 0, 5},
                                                                                 {5, 2, 7, 0, 3, 6, 1, 4}}) {
      if (std::all_of(indices.begin(), indices.end(), device_exists)) made.push_back(hosts(indices));
    }
    return made;
  }();
  return sets;
}

}  // namespace support
