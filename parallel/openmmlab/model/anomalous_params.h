// Which parameters a loss does not depend on: they would never learn anything from it.
#pragma once

#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// The parameters of `model` that require a gradient and are not in the graph of `loss`; logs an error with name and
// shape for each. What backward has freed does not matter. For finding mistakes: it visits the whole graph.
LOCKSTEP_API std::vector<NamedParameter> detect_anomalous_params(const Tensor& loss, const ModuleBase& model);

}  // namespace lockstep
