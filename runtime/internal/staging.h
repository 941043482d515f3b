// Copies between devices that do not reach each other, through pinned host memory. Private to the library.
#pragma once

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::detail {

// Enqueues on `out`, a stream of the source's device, the way to host memory, and on `in`, one of the destination's,
// the way from there, in pieces that follow each other. Does not block the host.
void copy_staged(const CopyArgs& args, Stream& out, Stream& in);

}  // namespace lockstep::detail
