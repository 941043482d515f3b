// Group normalisation of images in channels_last: in place of planes, sums for the channels of a few pixels at a time.
#pragma once

#include "lockstep/kernels/layer_args.h"

namespace lockstep::kernels::host {

// Whether x lies so that the kernels below are meant.
bool has_pixels(const View& x);
void group_norm_of_pixels(const GroupNormArgs& args);
void group_norm_of_pixels(const GroupNormGradArgs& args);

}  // namespace lockstep::kernels::host
