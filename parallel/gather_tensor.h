// Putting tensors of several devices together: the part of gather that does not depend on the type of the outputs.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Concatenates the pieces along `dim` on `device`, each copied straight into its place, ordered on the current streams
// of the devices involved. Pieces without dimensions (then `dim` must be 0) become a vector with one element each. All
// undefined gives undefined. One graph node; its backward scatters, so that it can be differentiated any number of
// times. Throws InvalidArgument, naming the replica and both sides, for ranks, sizes or dtypes that differ.
LOCKSTEP_API Tensor gather_tensor(std::span<const Tensor* const> pieces, Device device, std::int64_t dim);

// Set once the process has been told that scalars become a vector.
LOCKSTEP_API std::atomic<bool>& scalar_warning_given();

}  // namespace lockstep::detail
