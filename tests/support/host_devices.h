// Include this once in a test program (in a file of its own, say setup.cpp): it has 8 virtual host devices then,
// whatever the machine.
#pragma once

#include "lockstep/runtime/backend.h"

namespace support {

inline const bool eight_host_devices = (lockstep::configure_host({.devices = 8}), true);

}  // namespace support
