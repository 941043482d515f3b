#include "lockstep/parallel/comm/factory/rank_traits.h"

#include <charconv>
#include <set>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr std::string RankTraits::*kFields[] = {&RankTraits::machine,    &RankTraits::process, &RankTraits::gpu,
                                                &RankTraits::shares_gpu, &RankTraits::kind,    &RankTraits::backend};

std::string packed(const std::string& text) { return cat(text.size(), ':', text); }

[[noreturn]] void fail_to_unpack(std::string_view text) {
  fail<Error>("[make_communicator] expected what a rank says of itself, got '", text,
              "': do all ranks run the same version of Lockstep?");
}

// Takes the first packed text away.
std::string take(std::string_view& text) {
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const auto begin = static_cast<std::size_t>(end - text.data()) + 1;
  if (error != std::errc() || begin > text.size() || *end != ':' || text.size() - begin < bytes) fail_to_unpack(text);
  std::string taken(text.substr(begin, bytes));
  text.remove_prefix(begin + bytes);
  return taken;
}

}  // namespace

std::string pack(const RankTraits& traits) {
  std::string text;
  for (const auto field : kFields) text += packed(traits.*field);
  for (const auto& [backend, why] : traits.why_not) text += packed(backend) + packed(why);
  return text + packed("");  // no backend has that name: the end
}

RankTraits unpack(std::string_view text) {
  RankTraits traits;
  for (const auto field : kFields) traits.*field = take(text);
  for (std::string name = take(text); !name.empty(); name = take(text)) traits.why_not[name] = take(text);
  if (!text.empty()) fail_to_unpack(text);
  return traits;
}

RankTopology topology_of(const std::vector<RankTraits>& ranks) {
  RankTopology topology{.ranks = ranks.size()};
  std::set<std::string> machines, processes;
  std::map<std::string, std::vector<std::size_t>> gpus;  // the ranks on each
  const auto in_the_way = [&](std::size_t a, std::size_t b) {
    const bool may = !ranks[a].shares_gpu.empty() && !ranks[b].shares_gpu.empty();
    return !may || ranks[a].process == ranks[b].process;
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    machines.insert(ranks[r].machine);
    processes.insert(cat(ranks[r].machine, '#', ranks[r].process));
    if (ranks[r].gpu.empty()) continue;
    std::vector<std::size_t>& others = gpus[ranks[r].gpu];
    for (const std::size_t other : others)
      if (!topology.sharing_a_gpu && in_the_way(other, r)) topology.sharing_a_gpu = {other, r};
    others.push_back(r);
  }
  topology.machines = machines.size();
  topology.processes = processes.size();
  return topology;
}

}  // namespace lockstep::detail
