// How many elements of a batch each device gets.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

class LOCKSTEP_API ScatterPolicy {
 public:
  // The default: pieces of ceil(n / devices), so the last one may be smaller and the last devices may get none
  // (9 over 4: 3, 3, 3).
  ScatterPolicy() = default;
  static ScatterPolicy chunk() { return {}; }
  // As even as can be: 9 over 4 gives 3, 2, 2, 2.
  static ScatterPolicy balanced() { return ScatterPolicy(Kind::balanced); }
  // One size per device; they must add up to the batch. A device whose size is zero is skipped.
  static ScatterPolicy sizes(std::vector<std::int64_t> sizes);
  // In proportion, rounded by largest remainder (the first of equals first). A device whose share is zero is skipped.
  static ScatterPolicy weights(std::vector<double> weights);

  // The share of each of `devices` devices in a batch of `count`; they add up to `count`. Throws InvalidArgument when
  // the sizes or weights do not fit.
  std::vector<std::int64_t> shares(std::int64_t count, int devices) const;
  bool is_chunk() const { return kind_ == Kind::chunk; }  // the default

 private:
  enum class Kind { chunk, balanced, sizes, weights };
  explicit ScatterPolicy(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::chunk;
  std::vector<std::int64_t> sizes_;
  std::vector<double> weights_;
};

}  // namespace lockstep
