// Pooling of images in channels_last, which are not f64.
#pragma once

#include "lockstep/kernels/args.h"

namespace lockstep::kernels::host {

void max_pool_channels_last(const MaxPool2dArgs& a);
template <class T>  // the indices have been checked
void max_unpool_channels_last(const MaxUnpool2dArgs& a);
void avg_pool_channels_last(const AvgPool2dArgs& a);
void avg_pool_grad_channels_last(const AvgPool2dGradArgs& a);

}  // namespace lockstep::kernels::host
