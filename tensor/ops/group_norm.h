// What the normalisations of groups and of last dimensions share.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// x, read as `groups` [batch, groups, channels, length], normalised over the last two dimensions, times `weight` plus
// `bias` (of the shape `parameters`; both may be undefined). `op` names the operation in messages and in the graph.
// `format`: in which the kernel is to compute; in channels_last x is [batch, groups * channels, height, width].
LOCKSTEP_API Tensor normalize_groups(const char* op, const Tensor& x, const Shape& groups, const Shape& parameters,
                                     const Tensor& weight, const Tensor& bias, double eps,
                                     MemoryFormat format = MemoryFormat::contiguous);

// x as rows of the elements that are normalised together: [rows, length]. Throws unless x is floating and its last
// sizes are `normalized`.
Shape normalized_rows(const char* op, const Tensor& x, const Shape& normalized);
// Throws unless each of the parameters that are defined goes with x and has this shape.
void check_affine(const char* op, const Tensor& x, const Shape& parameters, const Tensor& weight,
                  const Tensor& bias = {});

}  // namespace lockstep::detail
