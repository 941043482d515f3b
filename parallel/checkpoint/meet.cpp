#include "lockstep/parallel/checkpoint/meet.h"

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

std::vector<std::string> meet(Communicator& communicator, const std::string& prefix, const std::string& text,
                              const std::string& problem) {
  constexpr char kText = '+', kProblem = '-';
  std::vector<std::string> all = communicator.all_gather_bytes(problem.empty() ? kText + text : kProblem + problem);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const char kind = all[rank].empty() ? '\0' : all[rank][0];
    all[rank].erase(0, 1);
    if (kind != kText) throw Error(cat(prefix, "rank ", rank, ": ", all[rank]));
  }
  return all;
}

}  // namespace lockstep::detail
