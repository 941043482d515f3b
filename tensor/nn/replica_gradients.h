// How the gradients of replicas come home. Private to the library.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lockstep/tensor/nn/slab_reduction.h"

namespace lockstep {

// A sum that has been enqueued before the backward was over.
struct BegunSum {
  std::shared_ptr<SlabSet> set;
  SlabRun run;
  Tensor sum;
};

// As reduce_replica_gradients of parameter_body.h, where some sums have begun.
void reduce_replica_gradients(std::vector<OwnedGradient> arrived, std::span<const BegunSum> begun);

// The place of a device's gradient in the order of the sum: -1 for home. Error when the parameter has left its slots.
int replica_of(const ParameterBody& body, Device device);
// Error when the parameter is in none any more.
std::shared_ptr<SlabSet> slabs_of(const ParameterBody& body);
void check_like(const ParameterBody& body, const Tensor& gradient);
// Whether a matrix is small, and nobody else may write its elements: to be stored with others.
bool may_be_kept(const ParameterBody& body, const Tensor& matrix);
// Stores the matrices that were kept, in one launch per device.
void store_matrices(std::span<OwnedGradient* const> gradients);

}  // namespace lockstep
