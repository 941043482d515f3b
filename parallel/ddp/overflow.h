// Loss scaling among ranks that do not all see the same gradients.
#pragma once

#include <functional>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

// For GradScalerOptions::share_overflow: a step is skipped, and the scale shrinks, on all ranks when it would on one.
//
//   GradScaler scaler({.share_overflow = overflow_on_any_rank(communicator)});
//
// Ranks that average all their gradients before every step meet infinity and NaN together and do not need it. Those
// that step with gradients of their own do (ignored parameters, parts of a model, local SGD): else their scales, and
// with them their steps, go apart. Every rank unscales and steps the same optimizers as often. Each question is an
// all_reduce of one number on the current stream, which the host waits for; it throws the communicator's CommError. The
// communicator outlives the scaler.
LOCKSTEP_API std::function<bool(bool)> overflow_on_any_rank(Communicator& communicator);

}  // namespace lockstep
