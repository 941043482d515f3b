// Copies through pinned host memory: between devices that do not reach each other, and between a device and host memory
// that it cannot copy from or to on its own. Private to the library.
#pragma once

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// Enqueues on `out`, a stream of the source's device, the way to host memory, and on `in`, one of the destination's,
// the way from there, in pieces that follow each other. Does not block the host.
void copy_staged(const CopyArgs& args, const Stream& out, const Stream& in);

// From pageable host memory to the device of `stream`: when it returns the source has been read, and the way from
// pinned memory to the device is enqueued. Blocks only while all pinned pieces of the device are under way.
void copy_from_pageable(const CopyArgs& args, const Stream& stream);
// From the device of `stream` to pageable host memory. Blocks until the bytes are there.
void copy_to_pageable(const CopyArgs& args, const Stream& stream);

}  // namespace lockstep::detail
