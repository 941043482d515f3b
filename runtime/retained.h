// What the library keeps of a device until the process ends, on purpose: streams and events that are made once and used
// again, pinned memory whose release would stop the device. For tests that look for what was left behind. Private to
// the library.
#pragma once

#include "lockstep/runtime/device.h"

namespace lockstep::detail {

struct Retained {
  int streams = 0, events = 0, pinned = 0;

  Retained& operator+=(const Retained& other) {
    streams += other.streams, events += other.events, pinned += other.pinned;
    return *this;
  }
};

// The device's own streams, those that no Stream object has at the moment, and events likewise.
Retained retained_streams(Device device);
// Events of other devices that released memory of the device waits for: for good when the device is lost.
Retained retained_uses(Device device);
// What copies go through on their way between a device and pageable memory, or into a device that does not reach the
// source. While no such copy is under way.
Retained retained_staging(Device device);

}  // namespace lockstep::detail
