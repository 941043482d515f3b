#include "lockstep/parallel/comm/factory/rank_choice.h"

#include <charconv>
#include <map>
#include <set>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr std::string RankTraits::*kFields[] = {&RankTraits::machine, &RankTraits::process, &RankTraits::gpu,
                                                &RankTraits::kind,    &RankTraits::backend, &RankTraits::no_nccl,
                                                &RankTraits::no_mpi};

// "2 ranks in 1 process on 1 machine"
std::string counted(std::size_t count, const char* one, const char* many) {
  return cat(count, ' ', count == 1 ? one : many);
}

// Why the first rank that cannot, cannot; "": all can.
std::string first_reason(const std::vector<RankTraits>& ranks, std::string RankTraits::*why_not) {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (!(ranks[r].*why_not).empty()) return cat("cannot be used by rank ", r, ": ", ranks[r].*why_not);
  return "";
}

// Which two ranks are on one GPU; "": none.
std::string shared_gpu(const std::vector<RankTraits>& ranks) {
  std::map<std::string, std::size_t> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto [at, is_new] = first.emplace(ranks[r].gpu, r);
    if (!is_new) return cat("needs a GPU for every rank, and ranks ", at->second, " and ", r, " share one");
  }
  return "";
}

}  // namespace

std::string pack(const RankTraits& traits) {
  std::string text;
  for (const auto field : kFields) text += cat((traits.*field).size(), ':', traits.*field);
  return text;
}

RankTraits unpack(std::string_view text) {
  RankTraits traits;
  for (const auto field : kFields) {
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
    const auto begin = static_cast<std::size_t>(end - text.data()) + 1;
    if (error != std::errc() || begin > text.size() || *end != ':' || text.size() - begin < bytes)
      fail<Error>("[make_communicator] expected what a rank says of itself, got '", text,
                  "': do all ranks run the same version of Lockstep?");
    traits.*field = text.substr(begin, bytes);
    text.remove_prefix(begin + bytes);
  }
  return traits;
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
  std::set<std::string> machines, processes;
  for (const RankTraits& rank : ranks) {
    machines.insert(rank.machine);
    processes.insert(cat(rank.machine, '#', rank.process));
  }
  const bool cuda = first.kind == "cuda";
  const std::string where =
      cat(counted(ranks.size(), "rank", "ranks"), " in ", counted(processes.size(), "process", "processes"), " on ",
          counted(machines.size(), "machine", "machines"));
  const std::string shared = cuda ? shared_gpu(ranks) : "";
  // What each could do, and why not.
  const std::map<std::string, std::string> objections = {
      {"nccl", !cuda             ? "works on CUDA devices"
               : !shared.empty() ? shared
                                 : first_reason(ranks, &RankTraits::no_nccl)},
      {"peer", processes.size() == 1 ? "" : "needs ranks that are threads of one process"},
      {"shared_memory", cuda                  ? "works on host devices"
                        : machines.size() > 1 ? "needs ranks on one machine"
                                              : ""},
      {"mpi", cuda ? "works on host devices" : first_reason(ranks, &RankTraits::no_mpi)}};
  if (!first.backend.empty()) {
    const auto found = objections.find(first.backend);
    LOCKSTEP_CHECK(found != objections.end(),
                   "[make_communicator] expected nccl, peer, shared_memory or mpi (the option backend, or "
                   "LOCKSTEP_COMMUNICATOR), got '",
                   first.backend, "'");
    if (!found->second.empty())
      throw NotSupported(cat("[make_communicator] ", first.backend, " ", found->second, "; there are ", where, " with ",
                             first.kind, " devices"));
    return {first.backend, "asked for"};
  }
  const std::vector<std::string> preferred =
      cuda ? std::vector<std::string>{"nccl", "peer"} : std::vector<std::string>{"shared_memory", "mpi"};
  std::string reasons;
  for (const std::string& backend : preferred) {
    const std::string& objection = objections.at(backend);
    if (objection.empty()) return {backend, reasons.empty() ? where : cat(where, "; ", reasons)};
    reasons += cat(reasons.empty() ? "" : "; ", backend, " ", objection);
  }
  throw NotSupported(
      cat("[make_communicator] no communicator suits ", where, " with ", first.kind, " devices: ", reasons));
}

}  // namespace lockstep::detail
