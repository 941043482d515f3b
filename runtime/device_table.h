// Which devices there are, fixed on first use; private to the library.
#pragma once

#include <atomic>
#include <vector>

#include "lockstep/runtime/backend.h"

namespace lockstep::detail {

struct DeviceTable {
  static constexpr int kTypes = 3;
  Backend* backends[kTypes] = {};  // null: this build or machine has none
  int count[kTypes] = {};
  int first[kTypes] = {};  // ordinal of index 0
  std::vector<Device> all;
};

inline constinit std::atomic<const DeviceTable*> the_device_table{nullptr};
const DeviceTable& build_device_table();

// Built on first use and never destroyed: no lock afterwards.
inline const DeviceTable& device_table() {
  const DeviceTable* table = the_device_table.load(std::memory_order_acquire);
  return table ? *table : build_device_table();
}

}  // namespace lockstep::detail
