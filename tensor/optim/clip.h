// Bounding gradients before a step.
#pragma once

#include <span>

#include "lockstep/tensor/nn/parameter.h"

namespace lockstep {

// Scales the gradients in place so that their common Euclidean norm is at most `max_norm`, and returns the norm they
// had: f32 (f64 where a gradient is f64), rank 0, on the device of the first one. Does not block the host. Undefined
// gradients are passed over; without any the result is 0 on cpu. Where the norm is not finite, look at the result: the
// gradients end up as 0 or NaN.
LOCKSTEP_API Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm);

// Bounds every element to [-limit, limit], in place.
LOCKSTEP_API void clip_grad_value(std::span<const Parameter> parameters, double limit);

}  // namespace lockstep
