// Copies from, to and between CUDA devices. Private to the library.
#pragma once

#include "lockstep/runtime/backend.h"

namespace lockstep::cuda {

// Of at least one byte, on a stream of one of the two devices.
void enqueue_copy(const CopyArgs& args, StreamHandle stream);

}  // namespace lockstep::cuda
