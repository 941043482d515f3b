// Tensors of different sizes in one tensor.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// `x` in the first corner of a tensor of shape `whole`, which is nowhere smaller; `value` in the rest. x itself where
// nothing is missing. Differentiable.
LOCKSTEP_API Tensor pad_end(const Tensor& x, const Shape& whole, double value);

// Stacked along a new first dimension, each padded with its value at the end of the last `pad_dims` dimensions, to the
// largest of all rounded up to a multiple of `divisor`. The tensors agree in rank, dtype, device and the other sizes.
LOCKSTEP_API Tensor stack_padded(std::span<const Tensor> tensors, std::span<const double> values, int pad_dims,
                                 std::int64_t divisor = 1);

}  // namespace lockstep::detail
