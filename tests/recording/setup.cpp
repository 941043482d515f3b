// The devices of this program: 8 host devices that record, of which each has the memory of a large GPU.
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/log.h"
#include "support/devices.h"

namespace {

const bool configured =
    (lockstep::configure_host(
         {.devices = 8, .memory_bytes = {std::size_t{80} << 30}, .mode = lockstep::HostMode::record}),
     lockstep::set_log_level(lockstep::LogLevel::error), true);

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::host; }

}  // namespace support
