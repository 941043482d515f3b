#include "lockstep/parallel/openmmlab/fewshot/episodes.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/data/random_engine.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers labels_of(const char* op, const FewShotData& set) {
  const std::int64_t count = set.count();
  LOCKSTEP_CHECK(set.gt_label.defined() && set.gt_label.dtype() == DType::i64 && set.gt_label.shape() == Shape{count},
                 "[", op, "] expected a label for each of ", count, " samples, i64[", count, "], got ", set.gt_label);
  return set.gt_label.to_vector<std::int64_t>();
}

// `count` of the elements, in random order, without repetition.
Numbers draw(Numbers from, std::int64_t count, RandomEngine& random) {
  const auto taken = static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < taken; ++i) std::swap(from[i], from[i + random.below(from.size() - i)]);
  from.resize(taken);
  return from;
}

Tensor as_tensor(const Numbers& numbers, Device device) {
  return from_data(numbers, {static_cast<std::int64_t>(numbers.size())}, {.device = device});
}

}  // namespace

std::vector<FewShotData> split_classes(const FewShotData& set, const std::vector<Numbers>& class_sets) {
  const Numbers labels = labels_of("split_classes", set);
  std::map<std::int64_t, std::pair<std::size_t, std::int64_t>> place;  // of each class: which list, and where in it
  for (std::size_t list = 0; list < class_sets.size(); ++list) {
    for (std::size_t i = 0; i < class_sets[list].size(); ++i) {
      const std::int64_t id = class_sets[list][i];
      const bool fresh = place.emplace(id, std::pair(list, static_cast<std::int64_t>(i))).second;
      LOCKSTEP_CHECK(fresh, "[split_classes] expected each class once, got class ", id, " again");
      LOCKSTEP_CHECK(std::find(labels.begin(), labels.end(), id) != labels.end(),
                     "[split_classes] expected classes with samples, got none of class ", id);
    }
  }
  std::vector<Numbers> chosen(class_sets.size()), relabelled(class_sets.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto found = place.find(labels[i]);
    if (found == place.end()) continue;
    chosen[found->second.first].push_back(static_cast<std::int64_t>(i));
    relabelled[found->second.first].push_back(found->second.second);
  }
  std::vector<FewShotData> subsets;
  for (std::size_t list = 0; list < class_sets.size(); ++list) {
    subsets.push_back(set.select(chosen[list]));
    subsets.back().gt_label = as_tensor(relabelled[list], set.gt_label.device());
  }
  return subsets;
}

EpisodicDataset::EpisodicDataset(FewShotData set, const EpisodicDatasetOptions& options)
    : set_(std::move(set)), options_(options) {
  const auto check = [](std::int64_t value, std::string_view name) {
    LOCKSTEP_CHECK(value >= 1, "[EpisodicDataset] expected ", name, " of at least 1, got ", value);
  };
  check(options.num_episodes, "num_episodes");
  check(options.num_ways, "num_ways");
  check(options.num_shots, "num_shots");
  check(options.num_queries, "num_queries");
  std::map<std::int64_t, Numbers> by_class;
  const Numbers labels = labels_of("EpisodicDataset", set_);
  for (std::size_t i = 0; i < labels.size(); ++i) by_class[labels[i]].push_back(static_cast<std::int64_t>(i));
  LOCKSTEP_CHECK(static_cast<std::int64_t>(by_class.size()) >= options.num_ways, "[EpisodicDataset] expected at least ",
                 options.num_ways, " classes for episodes of num_ways = ", options.num_ways, ", got ", by_class.size());
  for (auto& [id, samples] : by_class) {
    LOCKSTEP_CHECK(static_cast<std::int64_t>(samples.size()) - options.num_shots >= options.num_queries,
                   "[EpisodicDataset] expected at least ", options.num_shots, " + ", options.num_queries,
                   " samples of each class (shots and queries), got ", samples.size(), " of class ", id);
    classes_.push_back(id);
    samples_.push_back(std::move(samples));
  }
}

Episode EpisodicDataset::get(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "[EpisodicDataset] expected an index below ", size(), ", got ", index);
  RandomEngine random(options_.episodes_seed, static_cast<std::uint64_t>(index));
  Numbers positions(classes_.size());
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
  Episode episode;
  Numbers support, query, support_labels, query_labels;
  for (const std::int64_t position : draw(positions, options_.num_ways, random)) {
    const auto label = static_cast<std::int64_t>(episode.class_ids.size());
    const auto which = static_cast<std::size_t>(position);
    episode.class_ids.push_back(classes_[which]);
    const Numbers drawn = draw(samples_[which], options_.num_shots + options_.num_queries, random);
    const auto middle = drawn.begin() + options_.num_shots;
    support.insert(support.end(), drawn.begin(), middle);
    query.insert(query.end(), middle, drawn.end());
    support_labels.resize(support.size(), label);
    query_labels.resize(query.size(), label);
  }
  const Device device = set_.gt_label.device();
  episode.support_data = set_.select(support);
  episode.support_data.gt_label = as_tensor(support_labels, device);
  episode.query_data = set_.select(query);
  episode.query_data.gt_label = as_tensor(query_labels, device);
  return episode;
}

void EpisodicDataset::cache_feats(const Tensor& feats) {
  LOCKSTEP_CHECK(feats.rank() > 0 && feats.size(0) == set_.count(), "[EpisodicDataset] expected features of ",
                 set_.count(), " samples, got ", feats);
  set_.feats = feats.detach();
  set_.img = Tensor();
}

}  // namespace lockstep
