// Convolutions whose groups have few channels: too few to be blocks of vectors.
#pragma once

#include "lockstep/kernels/common/conv.h"

namespace lockstep::kernels::host {

// The gradient of the weights. False: others are faster, and nothing has been done.
bool few_channels_grad_weight(const ConvSizes& sizes, const float* dy, const float* x, float* dw);

}  // namespace lockstep::kernels::host
