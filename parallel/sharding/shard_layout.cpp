#include "lockstep/parallel/sharding/shard_layout.h"

#include <algorithm>

namespace lockstep {

ShardLayout::ShardLayout(std::span<const std::int64_t> counts, std::int64_t unit, int size) : ranks(size) {
  const auto up = [&](std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; };
  std::int64_t end = 0;
  for (const std::int64_t count : counts) {
    whole.push_back({end, count});
    end = up(end + count, unit);
  }
  shard = up(end, unit * ranks) / ranks;
}

ShardRange ShardLayout::kept(std::size_t i, int rank) const {
  const std::int64_t first = std::max(whole[i].begin, rank * shard),
                     last = std::min(whole[i].end(), (rank + 1) * shard);
  return first < last ? ShardRange{first - whole[i].begin, last - first} : ShardRange{};
}

std::int64_t ShardLayout::place(std::size_t i, int rank) const {
  const ShardRange range = kept(i, rank);
  return range.count == 0 ? 0 : whole[i].begin + range.begin - rank * shard;
}

}  // namespace lockstep
