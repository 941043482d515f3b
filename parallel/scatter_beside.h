// Scattering targets so that each goes with its input. Used by DataParallel.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/parallel/scatter.h"

namespace lockstep::detail {

LOCKSTEP_API void check_piece_size(std::size_t piece, std::int64_t inputs, std::int64_t targets);

// The targets of `inputs`, which were scattered to `pieces`: also where only one of them is in containers that are
// divided already. `options` has devices, dim and policy. Throws InvalidArgument where they cannot go together.
template <class Inputs, class Targets, class Options>
Pieces<Targets> scatter_beside(const Inputs& inputs, const Pieces<Inputs>& pieces, const Targets& targets,
                               const Options& options) {
  std::vector<std::int64_t> of_inputs = samples_of_parts(inputs);
  if (!of_inputs.empty()) {
    of_inputs.resize(options.devices.size());
    return scatter_pieces(targets, options.devices, options.dim, ScatterPolicy::sizes(std::move(of_inputs)));
  }
  const std::vector<std::int64_t> of_targets = samples_of_parts(targets);
  for (std::size_t i = 0; i < of_targets.size() && i < pieces.values.size(); ++i)
    check_piece_size(i, piece_size(pieces.values[i], options.dim), of_targets[i]);
  return scatter_pieces(targets, options.devices, options.dim, options.policy);
}

}  // namespace lockstep::detail
