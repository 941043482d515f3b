// What the stand-in for cuBLASLt is asked, and what it has no algorithm for.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace emulation {

struct Asked {
  bool epilogue = false;         // with a bias or an activation
  std::uint32_t alignment[4]{};  // of a, b, c and d, in bytes, at least
  bool exact_sums = false;       // partial sums in the type that computes
};
extern std::vector<Asked> asked;
extern std::function<bool(const Asked&)> refuses;  // empty: nothing

}  // namespace emulation
