// The devices of this program: 8 virtual host devices of which the last is small, and 2 manual ones (manual_backend).
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "support/devices.h"

namespace {

constexpr std::size_t kLarge = std::size_t{1} << 30;

const bool configured =
    (lockstep::configure_host({.devices = 8,
                               .memory_bytes = {kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, kLarge / 64},
                               .multiprocessors = {2, 1}}),
     true);

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::host; }

}  // namespace support
