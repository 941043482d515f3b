// How the gradients of a DistributedDataParallel are divided into buckets, for checkpoints: a training that goes on
// with it reduces the same buckets as one that was not interrupted. Where the order in which NCCL adds up elements
// depends on where they stand in a bucket, their sums are the same then.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

struct DdpBucketState {
  std::size_t first_bucket_bytes = 0, bucket_cap_bytes = 0;  // limits of the first bucket and of the others
  // The numbers of the trained parameters, in the order in which buckets take them up. Empty: the reverse of their own,
  // until the first backward has shown another.
  std::vector<int> order = {};
  bool operator==(const DdpBucketState&) const = default;
};

// Limits and order in one line: "1048576 26214400: 2 1 0".
LOCKSTEP_API std::string to_string(const DdpBucketState& state);
// Throws InvalidArgument for what is none of to_string's.
LOCKSTEP_API DdpBucketState parse_bucket_state(const std::string& text);

namespace detail {
std::string join_numbers(const std::vector<int>& numbers);  // "2 1 0"
// Throws InvalidArgument for other text.
std::vector<int> parse_numbers(const std::string& text);
}  // namespace detail

}  // namespace lockstep
