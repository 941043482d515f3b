// The product of matmul.cpp, for kernels that end in one.
#pragma once

#include "lockstep/kernels/args.h"

namespace lockstep::kernels::host {

// In the calling thread's order, divided among threads. A floating dtype.
void multiply_views(const MatmulArgs& args);

}  // namespace lockstep::kernels::host
