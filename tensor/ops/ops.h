// All operations on tensors.
#pragma once

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/quantized_ops.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
