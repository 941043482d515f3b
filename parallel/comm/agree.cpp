#include "lockstep/parallel/comm/agree.h"

namespace lockstep::detail {

std::vector<std::string> compare_notes(Communicator& communicator, const std::string& op, const std::string& text,
                                       const std::string& problem) {
  constexpr char kText = '+', kProblem = '-';
  std::vector<std::string> all = communicator.all_gather_bytes(problem.empty() ? kText + text : kProblem + problem);
  LOCKSTEP_CHECK(problem.empty(), "[", op, "] ", problem);  // the rank at fault has it at first hand
  for (std::size_t r = 0; r < all.size(); ++r) {
    const char kind = all[r].empty() ? '\0' : all[r][0];
    LOCKSTEP_CHECK(kind == kText || kind == kProblem, "[", op, "] expected every rank to make this call, but rank ", r,
                   " makes another one", all[r].empty() ? "" : cat(", with '", all[r], "'"));
    all[r].erase(0, 1);
    LOCKSTEP_CHECK(kind == kText, "[", op, "] rank ", r, ": ", all[r]);
  }
  return all;
}

void agree(Communicator& communicator, const std::string& op, const std::string& text, const std::string& problem) {
  const std::vector<std::string> all = compare_notes(communicator, op, text, problem);
  for (std::size_t r = 1; r < all.size(); ++r)
    LOCKSTEP_CHECK(all[r] == all[0], "[", op, "] expected the same on every rank, got '", all[0], "' on rank 0, '",
                   all[r], "' on rank ", r);
}

}  // namespace lockstep::detail
