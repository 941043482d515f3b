// Combining the pieces of several ranks, in the order of the ranks, with the kernels of the device. Private to the
// library.
#pragma once

#include <span>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// Bytes of scratch memory that combining `count` elements needs.
std::size_t combine_scratch_bytes(DType dtype, std::int64_t count);

// Enqueues on `stream`: out = pieces[0] op pieces[1] op …, each of `count` contiguous elements on the stream's device.
// f16 and bf16 are combined in f32 and rounded once. `out` may be one of the pieces.
void combine(const Stream& stream, RedOp reduction, DType dtype, std::int64_t count,
             std::span<const void* const> pieces, void* out, void* scratch);

}  // namespace lockstep::detail
