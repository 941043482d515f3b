// Parameters whose elements become given tensors, without a copy. Private to the library.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/tensor/nn/parameter.h"

namespace lockstep::detail {

// The home slot of each parameter becomes the tensor beside it, of its shape: the very elements where dtype, device and
// layout fit, else converted ones. Mirrors on other devices are dropped and gradients stay, as with ModuleBase::to; as
// there, nobody may use the parameters meanwhile. A given tensor may go as soon as its elements are converted.
void adopt_all(std::vector<std::pair<Parameter, Tensor>>&& given);

}  // namespace lockstep::detail
