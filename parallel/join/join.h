// join: trainings in which some ranks have fewer inputs than others.
//
//   join({net}, [&] {
//     for (const Batch& batch : my_batches) {  // as many as this rank has
//       optimizer.zero_grad();
//       loss(net(batch)).backward();
//       optimizer.step();
//     }
//   });
//
// A rank whose loop has ended shadows the collectives of the others until all have ended: it broadcasts, and reduces
// zeros. At the end every rank takes over the parameters of a rank that was active to the last, and the buffers where
// they are broadcast (DistributedDataParallelOptions::broadcast_buffers).
#pragma once

#include <functional>
#include <vector>

#include "lockstep/parallel/join/joinable.h"

namespace lockstep {

struct JoinOptions {
  // Gradients are divided by the number of ranks, as before; false: by the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  bool throw_on_early_termination = false;  // InputsExhausted on all ranks, when one has run out
  bool enable = true;                       // false: the body alone, for inputs that are known to be even
};

// The communicator is whole. The joinables can go on, with gradients that are unspecified until zero_grad(); but not a
// DistributedDataParallel of which a rank has made some of an iteration's backwards (backwards_per_forward), and not
// all: its next forward is an error.
class LOCKSTEP_API InputsExhausted : public Error {
 public:
  InputsExhausted(std::vector<int> ranks, int size);
  std::vector<int> ranks;  // that have run out, in order
};

// Calls `body` and then shadows the other ranks' steps of the joinables until all ranks have come here; blocks. Every
// rank makes the call, with the same joinables in the same order, of one communicator; they outlive the call. All that
// the body communicates over that communicator must be theirs. Each step costs a short message between the hosts.
//
// Throws InvalidArgument, before the body, for no joinables (on this rank: the others hear of nothing), and on every
// rank for several communicators, a joinable that is given twice or is in a join already, and ranks that do not give
// the same. Leaves an exception of the body to the caller, after breaking the communicator with it, so that the others
// get a CommError that names this rank. InputsExhausted of another join, which may be inside, is such an exception.
//
// Gradients of a rank that has run out stay what they were. Optimizers are not taken over: after uneven inputs those
// with a state (momentum, moments) differ between ranks, until they are made anew or load one rank's.
LOCKSTEP_API void join(const std::vector<std::reference_wrapper<Joinable>>& joinables, const JoinOptions& options,
                       const std::function<void()>& body);
inline void join(const std::vector<std::reference_wrapper<Joinable>>& joinables, const std::function<void()>& body) {
  join(joinables, {}, body);
}

}  // namespace lockstep
