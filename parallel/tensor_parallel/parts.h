// The parameters of a module whose ranks have parts of them: whole, as one device would have them, and back.
#pragma once

#include <span>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/optim/clip.h"

namespace lockstep {

// What state_dict() of the same module on one device would give: every parameter and buffer by name, whole, on cpu. On
// `root` alone; the other ranks get an empty list. One tensor is gathered after the other. Every rank calls it, with
// the communicator that the module's layers have. Throws CommError. Blocks.
//
//   const auto state = whole_state(model, ranks);
//   if (ranks.rank() == 0) save_safetensors(path, state);
LOCKSTEP_API std::vector<NamedTensor> whole_state(const ModuleBase& module, Communicator& ranks, int root = 0);

// Of a whole state: where the module has a part of a parameter, that part; a view where it lies together. What
// load_state_dict then takes. Calls no other rank. InvalidArgument for a tensor of a divided parameter whose shape is
// not the whole one.
LOCKSTEP_API std::vector<NamedTensor> own_parts(const ModuleBase& module, std::vector<NamedTensor> whole);

// clip_grad_norm by the norm of the whole model: the squares of divided parameters are added up over the ranks, and
// parameters that are whole, whose gradients all ranks have alike, count once. Every rank calls it with the same
// parameters and gets the same norm. Does not block the host, unless error_if_nonfinite. Throws CommError.
LOCKSTEP_API Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm, Communicator& ranks,
                                   const ClipNormOptions& options = {});

}  // namespace lockstep
