#include "lockstep/parallel/openmmlab/runner/metric.h"

#include <algorithm>

namespace lockstep::detail {

std::string interleave_results(const std::vector<std::string>& of_ranks, std::size_t bytes_each, std::int64_t samples) {
  std::size_t total = 0, most = 0;
  for (const std::string& bytes : of_ranks) {
    total += bytes.size() / bytes_each;
    most = std::max(most, bytes.size() / bytes_each);
  }
  const auto wanted = static_cast<std::size_t>(samples);
  LOCKSTEP_CHECK(samples >= 0 && total < wanted + of_ranks.size(), "[Runner] expected the ", of_ranks.size(),
                 " ranks to share ", samples, " samples, got ", total,
                 " results: give each rank's loader a DistributedSampler");
  std::string all;
  for (std::size_t i = 0; i < most; ++i)
    for (const std::string& bytes : of_ranks)
      if (i * bytes_each < bytes.size() && all.size() < wanted * bytes_each)
        all.append(bytes, i * bytes_each, bytes_each);
  return all;
}

}  // namespace lockstep::detail
