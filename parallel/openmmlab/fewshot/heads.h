// The parts of the few-shot classifiers that follow the backbone.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/data.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {

// The means of the features [n, d] of each class: [ways, d]. `gt_label` has every class from 0 to ways-1.
// Differentiable in the features; blocks for the labels. Throws InvalidArgument for a class without features.
LOCKSTEP_API Tensor class_prototypes(const Tensor& feats, const Tensor& gt_label);

// Minus the squared Euclidean distances of the features [n, d] from the prototypes [ways, d]: scores [n, ways].
LOCKSTEP_API Tensor negative_squared_distances(const Tensor& feats, const Tensor& prototypes);

namespace detail {
// Throws InvalidArgument for sizes below 1.
LOCKSTEP_API Linear make_head(const char* model, std::int64_t in_channels, std::int64_t num_classes);
// New values, as of a new layer, from the thread's random numbers.
LOCKSTEP_API void reset_head(const Linear& head);
}  // namespace detail

}  // namespace lockstep
