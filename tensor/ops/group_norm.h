// What group_norm and layer_norm share.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// x, read as `groups` [batch, groups, channels, length], normalised over the last two dimensions, times `weight` plus
// `bias` (of the shape `parameters`; both may be undefined). `op` names the operation in messages and in the graph.
LOCKSTEP_API Tensor normalize_groups(const char* op, const Tensor& x, const Shape& groups, const Shape& parameters,
                                     const Tensor& weight, const Tensor& bias, double eps);

}  // namespace lockstep::detail
