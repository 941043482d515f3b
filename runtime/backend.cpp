#include "lockstep/runtime/backend.h"

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

Backend& backend(DeviceType type) {
  Backend* found = detail::device_table().backends[static_cast<int>(type)];
  if (!found) [[unlikely]] {
    throw NotSupported(cat("[backend] expected a device type that this build and machine have, got ", type));
  }
  return *found;
}

}  // namespace lockstep
