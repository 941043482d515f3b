// Copies between layouts whose fastest dimensions differ.
#pragma once

#include "lockstep/kernels/cuda/offsets.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

// Copies through tiles in shared memory, so that neighbouring threads read neighbours and write neighbours. False,
// and nothing is enqueued, where that would not help: a fastest dimension in common, or one that is short.
bool transpose(const Stream& stream, const char* op, const View& in, const View& out);

}  // namespace lockstep::kernels::cuda
