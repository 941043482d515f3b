#include "lockstep/runtime/order/byte_runs.h"

namespace lockstep::detail {
namespace {

struct Dimension {
  std::int64_t size, stride;  // bytes
};

}  // namespace

ByteRun bounds_of(const MemoryUse& use) {
  const std::uintptr_t begin = address(use.data);
  std::uintptr_t end = begin + use.element_bytes;
  for (int d = 0; d < use.rank; ++d) {
    if (use.sizes[d] == 0) return {begin, begin};
    end += static_cast<std::uintptr_t>((use.sizes[d] - 1) * use.byte_strides[d]);
  }
  return {begin, end};
}

bool append_runs(const MemoryUse& use, std::vector<ByteRun>& runs) {
  Dimension dimensions[MemoryUse::kMaxRank];
  int rank = 0;
  for (int d = 0; d < use.rank; ++d) {
    if (use.sizes[d] == 1 || use.byte_strides[d] == 0) continue;
    int at = rank++;
    for (; at > 0 && dimensions[at - 1].stride > use.byte_strides[d]; --at) dimensions[at] = dimensions[at - 1];
    dimensions[at] = {use.sizes[d], use.byte_strides[d]};
  }
  // Innermost first: repetitions that touch or overlap make one longer run.
  auto run_bytes = static_cast<std::int64_t>(use.element_bytes);
  int first = 0;
  while (first < rank && dimensions[first].stride <= run_bytes) {
    run_bytes += (dimensions[first].size - 1) * dimensions[first].stride;
    ++first;
  }
  std::int64_t count = 1;
  for (int d = first; d < rank; ++d) {
    if (__builtin_mul_overflow(count, dimensions[d].size, &count) || count > kMostRuns) return false;
  }
  const std::size_t before = runs.size();
  runs.reserve(before + static_cast<std::size_t>(count));
  std::int64_t index[MemoryUse::kMaxRank] = {};
  std::uintptr_t at = address(use.data);
  for (std::int64_t i = 0; i < count; ++i) {
    runs.push_back({at, at + static_cast<std::uintptr_t>(run_bytes)});
    for (int d = first; d < rank; ++d) {
      at += static_cast<std::uintptr_t>(dimensions[d].stride);
      if (++index[d] < dimensions[d].size) break;
      at -= static_cast<std::uintptr_t>(dimensions[d].size * dimensions[d].stride);
      index[d] = 0;
    }
  }
  return true;
}

}  // namespace lockstep::detail
