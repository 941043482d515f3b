// Operations for layers that are prepared for inference (nn/folding.h). Private to the library.
#pragma once

#include <memory>

#include "lockstep/tensor/ops/nn_ops.h"

namespace lockstep {
class PackedWeights;
}

namespace lockstep::detail {

// Of conv2d(x, weight); throws InvalidArgument, as conv2d does, unless everything fits.
Shape conv2d_shape(const Tensor& x, const Tensor& weight, const ConvGeometry& geometry);

// As lockstep::conv2d, or its relu, of which there is no gradient. `packed`, which may be null, keeps forms of `weight`
// for the next call with the same elements.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& geometry, bool with_relu,
              const std::shared_ptr<PackedWeights>& packed);

// As lockstep::linear, with forms of `weight` kept in the same way.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
              const std::shared_ptr<PackedWeights>& packed);

}  // namespace lockstep::detail
