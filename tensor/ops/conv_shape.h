// For layers that must know the shape of a convolution before it is computed. Private to the library.
#pragma once

#include "lockstep/tensor/ops/nn_ops.h"

namespace lockstep::detail {

// Of conv2d(x, weight); throws InvalidArgument, as conv2d does, unless everything fits.
Shape conv2d_shape(const Tensor& x, const Tensor& weight, const ConvGeometry& geometry);

}  // namespace lockstep::detail
