// Parameters of which each of several ranks has a part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tensor/nn/parameter.h"

namespace lockstep {

// Which part of a whole tensor a rank has: along one dimension, an equal share of each of the sections that lie there
// one after the other. A matrix for queries, keys and values has three sections, most others one.
struct LOCKSTEP_API Shard {
  // In place of a dimension: elements that follow each other in the whole's memory, some or none. Only the wrapper that
  // cut them (FullyShardedDataParallel) has the whole; the functions below do not apply.
  static constexpr int kElements = -1;

  int dim = 0;
  std::vector<std::int64_t> sections = {};  // their sizes along `dim`, whole
  int rank = 0, ranks = 1;

  // Along `dim`: of the whole, and of a rank's part. Where a section does not divide evenly, the last ranks' shares end
  // with rows of zeros that the whole does not have.
  std::int64_t whole_size() const;
  std::int64_t part_size() const;
  // A shape with another size along `dim`.
  Shape whole_shape(Shape part) const;
  Shape part_shape(Shape whole) const;
  // This rank's part: a view where it lies together, and needs no zeros.
  Tensor part_of(const Tensor& whole) const;
  // From the parts of all ranks, by rank; without the rows of zeros.
  Tensor whole_of(std::span<const Tensor> parts) const;
  // A parameter that has this rank's part, and nothing of the whole, and says so.
  Parameter take(const Tensor& whole) const;
};

// Null for a parameter that is whole.
LOCKSTEP_API const Shard* shard_of(const Parameter& parameter);
// The parameter's tensor is a part, from now on, also in deep copies.
LOCKSTEP_API void set_shard(const Parameter& parameter, const Shard& shard);

}  // namespace lockstep
