// Runs a cell in processes of its own, and judges what they say and leave.
#pragma once

#include <cstdint>
#include <string>

#include "cell.h"

namespace failures {

struct Verdict {
  std::string wrong;         // "" for a cell that passed
  std::string log;           // what its ranks have said
  bool at_deadline = false;  // by the survivors' errors; else at once
  double seconds = 0;
};

// Blocks; may be called by several threads. `program` is this one, which runs the ranks.
Verdict judge(const Cell& cell, std::uint64_t seed, const std::string& program);

// Before the first cell: processes that lose their parent become children of this one. After the last: "" when there is
// none left.
void adopt_orphans();
std::string children_left();

}  // namespace failures
