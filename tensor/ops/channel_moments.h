// The two halves of a batch normalisation whose statistics are not those of its own input alone: what a piece of the
// batch knows of each channel, and normalising by given statistics. Layouts are arbitrary, empty inputs are fine.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Of x [N, C, ..] (floating): [3, C] in f64, per channel the mean, the sum of the squared distances from it, and how
// many elements there are. Zeros where there are none. Differentiable in the first two rows, any number of times.
LOCKSTEP_API Tensor channel_moments(const Tensor& x);

// (x - mean) / sqrt(var + eps) * weight + bias, per channel of x [N, C, ..], in the dtype of x, computed in f64 for f64
// and in f32 otherwise. mean, var [C] in f64; weight, bias [C] of any floating dtype, or undefined. Differentiable in
// all of them, any number of times.
LOCKSTEP_API Tensor normalize_channels(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight,
                                       const Tensor& bias, double eps);

}  // namespace lockstep::detail
