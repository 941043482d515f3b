// The lists of devices over which everything that works on several devices is tested. They want 8 devices,
// of which number 6 has less memory than the others (host_devices.h, or a setup of the program's own).
#pragma once

#include <initializer_list>
#include <vector>

#include "lockstep/runtime/device.h"

namespace support {

// The programs on CUDA devices say LOCKSTEP_TESTS_ON_CUDA: there the same lists are of those.
inline lockstep::Device numbered_device(int index) {
#ifdef LOCKSTEP_TESTS_ON_CUDA
  return lockstep::Device::cuda(index);
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

// 1, 2, 3, 5 and 8 devices; shuffled ones, which have another home than the first device; unequal memories.
inline const std::vector<std::vector<lockstep::Device>>& device_sets() {
  static const std::vector<std::vector<lockstep::Device>> sets{
      hosts(1),   hosts(2),      hosts(3),         hosts(5),         hosts(8),
      hosts({2}), hosts({3, 1}), hosts({4, 0, 2}), hosts({6, 0, 5}), hosts({5, 2, 7, 0, 3, 6, 1, 4})};
  return sets;
}

}  // namespace support
