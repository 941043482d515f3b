// Which devices there are, fixed on first use; private to the library.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/runtime/backend.h"

namespace lockstep::detail {

// How many kinds of devices there are. A switch, so that the compiler says when one is missing.
inline constexpr int kDeviceTypes = [] {
  switch (DeviceType::cpu) {
    case DeviceType::cpu:
    case DeviceType::host:
    case DeviceType::cuda:
      break;
  }
  return 3;
}();

struct DeviceTable {
  Backend* backends[kDeviceTypes] = {};  // null: this build or machine has none
  int count[kDeviceTypes] = {};
  int first[kDeviceTypes] = {};  // ordinal of index 0
  std::vector<Device> all;
  std::string (*why_no_cuda)() = nullptr;  // for messages; asks the driver
};

inline constinit std::atomic<const DeviceTable*> the_device_table{nullptr};
// In runtime/start/, above the backends that it makes.
const DeviceTable& build_device_table();
// What settings of the devices are changed under. Throws Error when it is too late for that.
std::unique_lock<std::mutex> before_first_use(const char* op);

// Built on first use and never destroyed: no lock afterwards.
inline const DeviceTable& device_table() {
  const DeviceTable* table = the_device_table.load(std::memory_order_acquire);
  return table ? *table : build_device_table();
}

}  // namespace lockstep::detail
