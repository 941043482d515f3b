// Resampling of images in channels_last. C: float or double.
#pragma once

#include "lockstep/kernels/layer_args.h"

namespace lockstep::kernels::host {

template <class C>
void resample_channels_last(const Resample2dArgs& a);

}  // namespace lockstep::kernels::host
