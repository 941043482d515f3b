// All operations on tensors.
#pragma once

#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_nn.h"
#include "lockstep/tensor/ops_sequence.h"
#include "lockstep/tensor/ops_shape.h"
