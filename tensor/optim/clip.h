// Bounding gradients before a step.
#pragma once

#include <span>

#include "lockstep/tensor/nn/parameter.h"

namespace lockstep {

struct ClipNormOptions {
  double norm_type = 2;  // p of the norm (sum of |x|^p)^(1/p), above 0; infinity: the largest |x|
  // Throws Error, before any gradient is changed, when the norm is infinite or NaN. Blocks the host.
  bool error_if_nonfinite = false;
};

// Scales the gradients in place so that their common norm is at most `max_norm` (it is, but for 1e-6 / norm of it), and
// returns the norm they had: f32 (f64 where a gradient is f64), rank 0, on the device of the first one. The gradients
// may be on several devices. Does not block the host. Undefined gradients are passed over; without any the result is 0
// on cpu. Where the norm is not finite, look at the result: the gradients end up as 0 or NaN. Of a sparse gradient the
// rows count once each, with their sums. InvalidArgument, before any gradient changes, where a parameter is one rank's
// part of a divided one: its norm is that over all ranks (parallel/tensor_parallel/parts.h).
LOCKSTEP_API Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm,
                                   const ClipNormOptions& options = {});

// Bounds every element to [-limit, limit], in place. NaN stays NaN. The rows of a sparse gradient are summed first.
LOCKSTEP_API void clip_grad_value(std::span<const Parameter> parameters, double limit);

namespace detail {
// For norms of which ranks have parts. The norm of the gradients as clip_grad_norm gives it; without any, an undefined
// tensor.
LOCKSTEP_API Tensor gradient_norm(std::span<const Parameter> parameters, double norm_type);
// That of parts whose norms these are, one-dimensional.
LOCKSTEP_API Tensor norm_of_norms(const Tensor& norms, double norm_type);
// Scales the gradients as clip_grad_norm does where `total` is their norm.
LOCKSTEP_API void scale_to_norm(std::span<const Parameter> parameters, const Tensor& total, double max_norm);
// Throws what clip_grad_norm does.
LOCKSTEP_API void check_clip(double max_norm, double norm_type);
LOCKSTEP_API void check_norm(const Tensor& total, std::size_t parameters);
}  // namespace detail

}  // namespace lockstep
