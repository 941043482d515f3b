#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/sync_norm/rank_statistics.h"
#include "lockstep/parallel/sync_norm/replica_statistics.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/norm.h"

namespace lockstep {
namespace {

struct Named {
  std::string name;
  BatchNorm* norm;
};

// Each once, under its first name.
std::vector<Named> norms_of(ModuleBase& module) {
  std::vector<Named> norms;
  std::unordered_set<const BatchNorm*> known;
  MemberVisitor visitor;
  visitor.module = [&](ModuleBase& member) {
    auto* const norm = dynamic_cast<BatchNorm*>(&member);
    if (norm && known.insert(norm).second) norms.push_back({visitor.path(), norm});
  };
  visitor.visit(module);
  return norms;
}

std::string describe(const Named& named) {
  const BatchNormOptions& options = named.norm->options();
  const Parameter& any = named.norm->weight.defined() ? named.norm->weight : named.norm->running_mean;
  return cat("'", named.name, "'", any.defined() ? cat(' ', any.shape()) : "", ", eps ", options.eps, ", momentum ",
             options.momentum ? cat(*options.momentum) : "none", options.affine ? "" : ", without weight and bias",
             options.track_running_stats ? "" : ", without running statistics");
}

std::string line(const std::string& text, std::size_t number) {
  std::size_t begin = 0;
  for (; number > 0 && begin < text.size(); --number) begin = std::min(text.find('\n', begin), text.size() - 1) + 1;
  return begin < text.size() ? text.substr(begin, text.find('\n', begin) - begin) : "nothing more";
}

// Throws the same on every rank.
void check_alike(const std::vector<std::string>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::size_t number = 0;
    while (line(all[0], number) == line(all[r], number)) ++number;
    throw InvalidArgument(cat("[convert_sync_batchnorm] expected the same norms on every rank, got on rank 0 ",
                              line(all[0], number), ", on rank ", r, ' ', line(all[r], number)));
  }
}

// All of them or none.
int share(const std::vector<Named>& norms, std::vector<std::shared_ptr<const SharedStatistics>> statistics) {
  for (std::size_t i = 0; i < norms.size(); ++i) norms[i].norm->share(std::move(statistics[i]));
  return static_cast<int>(norms.size());
}

// Whether another rank is a thread of this process on the same device.
bool has_neighbours(Communicator& communicator) {
  const std::string mine = cat(detail::process_token(), ' ', communicator.device());
  const std::vector<std::string> all = communicator.all_gather_bytes(mine);
  return std::count(all.begin(), all.end(), mine) > 1;
}

}  // namespace

int convert_sync_batchnorm(ModuleBase& module, Communicator& communicator) {
  const std::vector<Named> norms = norms_of(module);
  std::string mine;
  for (const Named& named : norms) mine += describe(named) + '\n';
  check_alike(communicator.all_gather_bytes(mine));
  if (norms.empty()) return 0;
  const bool neighbours = has_neighbours(communicator);
  const auto ranks = std::make_shared<const detail::NormRanks>(
      detail::NormRanks{.communicator = communicator.split(0), .neighbours = neighbours, .norms = std::ssize(norms)});
  std::vector<std::shared_ptr<const SharedStatistics>> statistics;
  for (std::int64_t i = 0; i < ranks->norms; ++i)
    statistics.push_back(std::make_shared<const detail::RankStatistics>(ranks, i));
  return share(norms, std::move(statistics));
}

int convert_replica_batchnorm(ModuleBase& module) {
  const std::vector<Named> norms = norms_of(module);
  std::vector<std::shared_ptr<const SharedStatistics>> statistics;
  for (const Named& named : norms) statistics.push_back(std::make_shared<const detail::ReplicaStatistics>(named.name));
  return share(norms, std::move(statistics));
}

std::optional<std::string> detail::norm_that_waits(ModuleBase& module) {
  for (const Named& named : norms_of(module)) {
    const auto* const ranks = dynamic_cast<const RankStatistics*>(named.norm->shared().get());
    if (ranks && ranks->waits() && named.norm->is_training()) return named.name;
  }
  return {};
}

int revert_sync_batchnorm(ModuleBase& module) {
  int converted = 0;
  for (const Named& named : norms_of(module)) {
    converted += named.norm->shared() != nullptr;
    named.norm->share(nullptr);
  }
  return converted;
}

}  // namespace lockstep
