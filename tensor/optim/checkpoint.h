// Optimizers in files, so that a training can go on where it stopped.
//
// A training that is to go on bit for bit needs the model (save_model), the optimizer, and where there are any the
// schedule and the scaler (their state_dict()), and the place in the data and in the random numbers.
#pragma once

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// Writes optimizer.state_dict(module) as a safetensors file: "state.<parameter>.exp_avg", "groups.0.lr". The metadata
// say "optimizer": the optimizer's name. Blocks. Throws what save_safetensors does, and InvalidArgument when a
// parameter of the optimizer is not in `module` or the metadata have an "optimizer" already.
LOCKSTEP_API void save_optimizer(const Optimizer& optimizer, const ModuleBase& module, const std::string& path,
                                 std::map<std::string, std::string> metadata = {});

// Takes over the state in a file, and returns its metadata. Throws, before anything is changed, what load_safetensors
// does, and InvalidArgument when the file is another optimizer's or names, shapes, dtypes or groups do not fit.
LOCKSTEP_API std::map<std::string, std::string> load_optimizer(Optimizer& optimizer, const ModuleBase& module,
                                                               const std::string& path);

}  // namespace lockstep
