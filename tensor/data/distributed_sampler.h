// The share of an epoch that one rank of several trains on.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // the same on all ranks
  // Where `count` is no multiple of the ranks: false gives some indices, from the epoch's beginning, to two ranks, true
  // leaves some out at its end. Every rank has as many either way.
  bool drop_last = false;
};

// Every size-th index of the epoch's order, from the rank-th on: an index belongs to one rank, and the union over the
// ranks is the epoch. The order is a function of (seed, epoch) alone, so no rank needs to know what the others do.
class LOCKSTEP_API DistributedSampler {
 public:
  // Throws InvalidArgument for a negative count or a rank that is not below `size`.
  DistributedSampler(std::int64_t count, int rank, int size, DistributedSamplerOptions options = {});
  std::int64_t size() const { return per_rank_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  std::int64_t count_, per_rank_;
  int rank_, ranks_;
  DistributedSamplerOptions options_;
};

}  // namespace lockstep
