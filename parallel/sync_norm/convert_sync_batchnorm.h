// Batch normalisation by the statistics of the whole batch, where several devices or ranks compute pieces of it.
//
//   DistributedDataParallel<Net> net(Net{}, communicator);
//   convert_sync_batchnorm(net, communicator);     // every rank; before or after wrapping
//
//   DataParallel<Net> net(Net{});
//   convert_replica_batchnorm(net);                // among the replicas of each call
#pragma once

#include <optional>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// From now on each BatchNorm in `module` normalises, in training, by the statistics of what all ranks give it together,
// and its backward goes through them; running statistics are the same bits on all ranks. The modules stay the objects
// they are, with parameters, buffers, mode, hooks and optimizers; evaluation is as before and communicates nothing, as
// is everything with one rank. Pieces may have different sizes, or none.
//
// Every rank calls it, and afterwards each norm and its backward, in the same order: ranks that are at different norms
// get a CommError. Where gradients are recorded, every rank's output wants one, and its backward communicates, also
// where nothing else of this rank does: another rank may want it. The norms have a communicator of their own, split
// from `communicator`, and the deadline that this has now. They work on the current stream; gradients of weight and
// bias stay the rank's own, for DistributedDataParallel to average.
//
// A copy, a deep one too, is converted as the module is: revert_sync_batchnorm(copy) where one rank trains it alone.
// After a failure the norms go on with the communicator that is broken: convert them again, with the new one.
//
// Throws, on every rank, InvalidArgument where the norms of the ranks differ: the first that does, with both
// descriptions; nothing is converted then. CommError where a rank does not come. Not while the module is called.
// Returns how many norms there are. Inputs are on the device of `communicator`: a norm on another one of a rank's
// devices is an error of its call. In a join() of uneven inputs nobody shadows a norm: it has to end on all ranks at
// once (JoinOptions::throw_on_early_termination), and DistributedDataParallel refuses others.
LOCKSTEP_API int convert_sync_batchnorm(ModuleBase& module, Communicator& communicator);

// The same among the replicas of each call of a DataParallel, or of parallel_apply: `module` is the one that has
// replicas, or contains it. Nothing is shared among ranks. A call with one replica, or without replicas, is as before.
// Every replica of a call must come to the same norms in the same order: where one has returned, has thrown or waits at
// another norm, all that wait for it throw an Error that names it. A replica in NoGrad takes part, and no gradient
// comes to it. Backward comes after the call, and not in checkpoint().
LOCKSTEP_API int convert_replica_batchnorm(ModuleBase& module);

// Makes every BatchNorm in `module` one by itself again. Communicates nothing. Returns how many were converted.
LOCKSTEP_API int revert_sync_batchnorm(ModuleBase& module);

namespace detail {
// The name of the first norm in `module` that is in training and shares its statistics among several ranks.
std::optional<std::string> norm_that_waits(ModuleBase& module);
}  // namespace detail

}  // namespace lockstep
