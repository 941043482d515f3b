#include "lockstep/parallel/sharding/partition.h"

#include <algorithm>
#include <numeric>

namespace lockstep {

std::vector<int> partition_by_size(std::span<const std::int64_t> sizes, std::vector<std::int64_t>& totals) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> ranks(sizes.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(totals.begin(), totals.end());
    *least += sizes[i];
    ranks[i] = static_cast<int>(least - totals.begin());
  }
  return ranks;
}

}  // namespace lockstep
