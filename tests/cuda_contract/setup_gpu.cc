// The layers' tests on real GPUs, or on logical devices of one.
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/log.h"
#include "support/devices.h"

namespace {

const bool configured =
    (lockstep::configure_host({.devices = 2}), lockstep::set_log_level(lockstep::LogLevel::error), true);

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::cuda; }

}  // namespace support
