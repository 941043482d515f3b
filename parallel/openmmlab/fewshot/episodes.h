// Episodes: few-shot tasks that are drawn from a labelled set. After mmfewshot's EpisodicDataset.
//
//   const std::vector<FewShotData> sets = split_classes(digits, {{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}});
//   const EpisodicDataset tasks(sets[1], {.num_episodes = 600, .num_ways = 5, .num_shots = 1, .num_queries = 15});
//   const Episode episode = tasks.get(0);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/data.h"

namespace lockstep {

// A subset for each list of classes: the samples of those classes, in their order, labelled by the class's place in its
// list. Blocks for the labels. Throws InvalidArgument for a class that is in two lists, twice in one, or without
// samples.
LOCKSTEP_API std::vector<FewShotData> split_classes(const FewShotData& set,
                                                    const std::vector<std::vector<std::int64_t>>& class_sets);

struct EpisodicDatasetOptions {
  std::int64_t num_episodes = 100;
  std::int64_t num_ways = 5;      // classes of an episode
  std::int64_t num_shots = 1;     // labelled samples of each class
  std::int64_t num_queries = 15;  // further samples of each class
  std::uint64_t episodes_seed = 0;
};

// A Dataset of episodes. What episode i is depends on the set, the options and i alone. Samples of an episode are all
// different; they stand class after class, and are on the device of the set. get() may be called by several threads.
class LOCKSTEP_API EpisodicDataset {
 public:
  // Blocks for the labels. Throws InvalidArgument for options below 1, labels that are not i64[n], fewer classes than
  // num_ways, and a class with fewer samples than an episode takes.
  EpisodicDataset(FewShotData set, const EpisodicDatasetOptions& options);

  const FewShotData& set() const { return set_; }
  const EpisodicDatasetOptions& options() const { return options_; }
  std::int64_t size() const { return options_.num_episodes; }
  // Throws InvalidArgument for an index that is not below size().
  Episode get(std::int64_t index) const;

  // Episodes are made of these features from now on, one for each sample of the set, in place of its images.
  void cache_feats(const Tensor& feats);

 private:
  FewShotData set_;
  EpisodicDatasetOptions options_;
  std::vector<std::int64_t> classes_;               // ascending
  std::vector<std::vector<std::int64_t>> samples_;  // of each class
};

}  // namespace lockstep
