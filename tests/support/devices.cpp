#include "support/devices.h"

#include <algorithm>

#include "lockstep/runtime/backend.h"
#include "support/catch.h"

namespace support {

using namespace lockstep;

constexpr int kDevicesOfTests = 8;

Device device_at(int index) {
  if (device_type() == DeviceType::host) return Device::host(index);
  if (index < kDevicesOfTests) needs_devices(index + 1);  // what is beyond these is not meant to exist
  return Device::cuda(index);
}

std::vector<Device> devices_at(std::initializer_list<int> indices) {
  std::vector<Device> devices;
  for (const int index : indices) devices.push_back(device_at(index));
  return devices;
}

std::vector<Device> first_devices(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(device_at(i));
  return devices;
}

std::string device_name(int index) {
  return (device_type() == DeviceType::host ? "host:" : "cuda:") + std::to_string(index);
}

int device_count() {
  static const auto count = [] {
    const std::vector<Device> all = all_devices();
    return std::count_if(all.begin(), all.end(), [](Device device) { return device.type() == device_type(); });
  }();
  return static_cast<int>(count);
}

void needs_devices(int count) {
  if (count > device_count()) {
    skip(std::to_string(count) + " devices expected, " + std::to_string(device_count()) + " found");
  }
}

void needs_unequal_devices() {
  if (device_type() == DeviceType::host) return;
  if (properties(device_at(6)).total_memory_bytes == properties(device_at(0)).total_memory_bytes ||
      properties(device_at(7)).multiprocessors == properties(device_at(0)).multiprocessors) {
    skip("unequal devices expected, equal ones found");
  }
}

void skip(const std::string& why) {
#ifdef SKIP
  SKIP(why);
#else  // an older Catch2 has no word for it; a case that ends so has failed nothing
  WARN("skipped: " << why);
  throw Catch::TestFailureException();
#endif
}

const std::vector<std::vector<Device>>& device_sets() {
  static const auto sets = [] {
    std::vector<std::vector<Device>> made;
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
      if (std::max(indices) < device_count()) made.push_back(devices_at(indices));
    }
    return made;
  }();
  return sets;
}

}  // namespace support
