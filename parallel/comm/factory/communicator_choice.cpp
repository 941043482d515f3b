#include "lockstep/parallel/comm/factory/communicator_choice.h"

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// "2 ranks in 1 process on 1 machine"
std::string counted(std::size_t count, const char* one, const char* many) {
  return cat(count, ' ', count == 1 ? one : many);
}

// Why the ranks cannot use the backend; "": they can.
std::string objection(const CommunicatorBackend& backend, const std::vector<RankTraits>& ranks,
                      const RankTopology& topology) {
  if (backend.works_on && ranks[0].kind != backend.works_on)
    return cat("works on ", backend.works_on == std::string("cuda") ? "CUDA" : backend.works_on, " devices");
  if (backend.why_not_together)
    if (std::string why = backend.why_not_together(topology); !why.empty()) return why;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (const auto why = ranks[r].why_not.find(backend.name); why != ranks[r].why_not.end())
      return cat("cannot be used by rank ", r, ": ", why->second);
  return "";
}

// "nccl, peer or mpi"
std::string names_of_backends() {
  const auto backends = communicator_backends();
  std::string names;
  for (std::size_t i = 0; i < backends.size(); ++i)
    names += cat(i == 0 ? "" : i + 1 < backends.size() ? ", " : " or ", backends[i].name);
  return names;
}

}  // namespace

bool may_be_chosen(const CommunicatorBackend& backend, const std::string& kind, const std::string& asked) {
  if (backend.works_on && kind != backend.works_on) return false;
  return asked.empty() ? backend.default_for && kind == backend.default_for : asked == backend.name;
}

RankChoice choose(const std::vector<RankTraits>& ranks) {
  const RankTraits& first = ranks.at(0);
  const auto shown = [](const RankTraits& rank) { return rank.backend.empty() ? "none" : rank.backend; };
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    LOCKSTEP_CHECK(ranks[r].kind == first.kind, "[make_communicator] expected one kind of device on all ranks, got ",
                   first.kind, " on rank 0 and ", ranks[r].kind, " on rank ", r);
    LOCKSTEP_CHECK(ranks[r].backend == first.backend, "[make_communicator] expected one backend on all ranks, got ",
                   shown(first), " on rank 0 and ", shown(ranks[r]), " on rank ", r);
  }
  const RankTopology topology = topology_of(ranks);
  const std::string where =
      cat(counted(ranks.size(), "rank", "ranks"), " in ", counted(topology.processes, "process", "processes"), " on ",
          counted(topology.machines, "machine", "machines"));
  std::string reasons;
  for (const CommunicatorBackend& backend : communicator_backends()) {
    if (first.backend.empty() ? !may_be_chosen(backend, first.kind, "") : first.backend != backend.name) continue;
    const std::string why_not = objection(backend, ranks, topology);
    if (!first.backend.empty()) {
      if (why_not.empty()) return {&backend, "asked for"};
      throw NotSupported(cat("[make_communicator] ", backend.name, " ", why_not, "; there are ", where, " with ",
                             first.kind, " devices"));
    }
    if (why_not.empty()) return {&backend, reasons.empty() ? where : cat(where, "; ", reasons)};
    reasons += cat(reasons.empty() ? "" : "; ", backend.name, " ", why_not);
  }
  LOCKSTEP_CHECK(first.backend.empty(), "[make_communicator] expected ", names_of_backends(),
                 " (the option backend, or LOCKSTEP_COMMUNICATOR), got '", first.backend, "'");
  throw NotSupported(
      cat("[make_communicator] no communicator suits ", where, " with ", first.kind, " devices: ", reasons));
}

}  // namespace lockstep::detail
