// The devices of this program: 8 virtual host devices. Device 6 has half the memory of the others, device 7 half the
// multiprocessors. Warnings are off unless a test captures them.
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/log.h"
#include "support/devices.h"

namespace {

constexpr std::size_t kMemory = std::size_t{1} << 30;

const bool configured = (lockstep::configure_host({.devices = 8,
                                                   .memory_bytes = {kMemory, kMemory, kMemory, kMemory, kMemory,
                                                                    kMemory, kMemory / 2, kMemory},
                                                   .multiprocessors = {2, 2, 2, 2, 2, 2, 2, 1}}),
                         lockstep::set_log_level(lockstep::LogLevel::error), true);

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::host; }

}  // namespace support
