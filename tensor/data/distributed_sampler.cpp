#include "lockstep/tensor/data/distributed_sampler.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/data/sampler.h"

namespace lockstep {

DistributedSampler::DistributedSampler(std::int64_t count, int rank, int size, DistributedSamplerOptions options)
    : count_(count), rank_(rank), ranks_(size), options_(options) {
  LOCKSTEP_CHECK(count >= 0, "[DistributedSampler] expected a count of at least 0, got ", count);
  LOCKSTEP_CHECK(size > 0 && rank >= 0 && rank < size,
                 "[DistributedSampler] expected a rank below the number of ranks, got rank ", rank, " of ", size);
  per_rank_ = options.drop_last ? count / size : (count + size - 1) / size;
}

std::vector<std::int64_t> DistributedSampler::indices(std::uint64_t epoch) const {
  if (per_rank_ == 0) return {};
  const std::vector<std::int64_t> order = options_.shuffle
                                              ? RandomSampler(count_, {.seed = options_.seed}).indices(epoch)
                                              : SequentialSampler(count_).indices(epoch);
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(per_rank_));
  for (std::int64_t i = 0; i < per_rank_; ++i)
    mine.push_back(order[static_cast<std::size_t>((rank_ + i * ranks_) % count_)]);
  return mine;
}

}  // namespace lockstep
