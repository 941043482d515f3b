// Where the tensors of a unit lie in one piece of memory, and which part of it each rank keeps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

// A run of elements.
struct ShardRange {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// Tensors one after another, each from a multiple of `unit` elements on. Rank r keeps elements
// [r * shard, (r + 1) * shard): a tensor may be cut anywhere at a multiple of `unit`, and the last ranks may have
// padding only.
struct LOCKSTEP_API ShardLayout {
  ShardLayout() = default;
  ShardLayout(std::span<const std::int64_t> counts, std::int64_t unit, int ranks);

  std::vector<ShardRange> whole;  // of each tensor, in the whole
  std::int64_t shard = 0;         // elements of a rank's part
  int ranks = 1;

  std::int64_t total() const { return shard * ranks; }
  // Of the i-th tensor: which of its elements the rank keeps, counted from the tensor's first.
  ShardRange kept(std::size_t i, int rank) const;
  // And where these lie in the rank's part.
  std::int64_t place(std::size_t i, int rank) const;
};

}  // namespace lockstep
