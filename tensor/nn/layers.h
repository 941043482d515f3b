// All layers.
#pragma once

#include "lockstep/tensor/nn/attention.h"
#include "lockstep/tensor/nn/containers.h"
#include "lockstep/tensor/nn/conv.h"
#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/nn/packed_sequence.h"
#include "lockstep/tensor/nn/quantize_linears.h"
#include "lockstep/tensor/nn/rnn.h"
#include "lockstep/tensor/nn/sequential.h"
#include "lockstep/tensor/nn/simple_layers.h"
#include "lockstep/tensor/nn/transformer.h"
