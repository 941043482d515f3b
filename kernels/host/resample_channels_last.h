// Resampling of images in channels_last, which are not f64.
#pragma once

#include "lockstep/kernels/layer_args.h"

namespace lockstep::kernels::host {

void resample_channels_last(const Resample2dArgs& a);

}  // namespace lockstep::kernels::host
