// The layers' tests on real GPUs, or on logical devices of one.
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/log.h"

namespace {

const bool configured =
    (lockstep::configure_host({.devices = 2}), lockstep::set_log_level(lockstep::LogLevel::error), true);

}  // namespace
