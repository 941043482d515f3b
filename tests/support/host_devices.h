// Include this once in a test program (in a file of its own, say setup.cpp): it has 8 virtual host devices then,
// whatever the machine, of which number 6 has half the memory of the others (see devices.h).
#pragma once

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "support/devices.h"

namespace support {

inline constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;
inline const bool eight_host_devices =
    (lockstep::configure_host({.devices = 8,
                               .memory_bytes = {kDeviceBytes, kDeviceBytes, kDeviceBytes, kDeviceBytes, kDeviceBytes,
                                                kDeviceBytes, kDeviceBytes / 2, kDeviceBytes}}),
     true);

lockstep::DeviceType device_type() { return lockstep::DeviceType::host; }

}  // namespace support
