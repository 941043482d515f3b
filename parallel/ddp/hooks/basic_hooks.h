// Communication hooks without a state: the average, in the parameters' dtype or in 16 bits, and nothing at all.
//
//   net.register_comm_hook(bf16_compress_hook());
//
// Each has the same bits on every rank (but for no_op_hook). Rows of sparse gradients are averaged as they are.
#pragma once

#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep {

// The average over the ranks, divided before anything is added: the bits of no hook.
LOCKSTEP_API CommHook all_reduce_hook();

// Communicates nothing: gradients stay as each rank has them, undivided.
LOCKSTEP_API CommHook no_op_hook();

// As all_reduce_hook(), in half the bytes of f32: divided, rounded to 16 bits, added, and brought back. What does not
// fit into f16 (beyond 65504 after the division) becomes infinite; bf16 has the range of f32 and fewer digits.
LOCKSTEP_API CommHook f16_compress_hook();
LOCKSTEP_API CommHook bf16_compress_hook();

// Rounds to 16 bits, lets `inner` work on that, and brings back what it leaves. `inner` divides.
LOCKSTEP_API CommHook f16_compress_wrapper(CommHook inner);
LOCKSTEP_API CommHook bf16_compress_wrapper(CommHook inner);

namespace detail {
// bucket: the average over the ranks, of a buffer or of rows, on the current stream. Blocks for rows.
void average(GradBucket& bucket);
}  // namespace detail

}  // namespace lockstep
