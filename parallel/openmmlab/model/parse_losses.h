// What becomes of the losses of a model: one number to differentiate, and what is logged.
#pragma once

#include <tuple>
#include <utility>

#include "lockstep/parallel/openmmlab/model/model_output.h"

namespace lockstep {

// The sum of the losses (of every name that contains "loss": a tensor's mean, a list's sum of means), and what is to be
// logged, outside the graph: "loss", the sum, first, then every name with its value; a model's own "loss" beside other
// losses is logged as "loss_". Integers and bools (a count of hits) count as numbers of the default dtype. Throws
// InvalidArgument, naming it, for what is neither a tensor nor a list of tensors, and where no name contains "loss".
LOCKSTEP_API std::pair<Tensor, LogVars> parse_losses(const Losses& losses);

namespace detail {

// Of what a forward gave in Mode::loss: a ModelOutput, a LossOutput, Losses, or these in a tuple with predictions and
// masks.
template <class Result>
LossOutput losses_of(Result result) {
  if constexpr (requires { result.loss(); })
    return std::move(result.loss());
  else if constexpr (tree::IsTuple<Result>)
    return std::make_from_tuple<LossOutput>(std::move(result));
  else
    return LossOutput(std::move(result));
}

// Adds "vis_preds" and "vis_masks", outside the graph; masks only with predictions.
LOCKSTEP_API void log_predictions(LogVars& log, const LossOutput& output);

}  // namespace detail
}  // namespace lockstep
