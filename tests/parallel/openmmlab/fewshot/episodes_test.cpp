#include "lockstep/parallel/openmmlab/fewshot/episodes.h"

#include <algorithm>
#include <set>

#include "lockstep/tensor/data/dataset.h"
#include "parallel/support.h"

namespace {

using namespace parallel_test;
using Numbers = std::vector<std::int64_t>;

static_assert(Dataset<EpisodicDataset>);

Numbers numbers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

// Sample i is the number i, with the label i mod `classes`, times ten.
FewShotData samples(std::int64_t count, std::int64_t classes, Device device = Device::cpu()) {
  Numbers labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(10 * (i % classes));
  return {.img = counting({count, 1}, device, 0), .gt_label = from_data(labels, {count}, {.device = device})};
}

std::string episodes_refusal(const FewShotData& set, const EpisodicDatasetOptions& options) {
  return message_of<InvalidArgument>([&] { EpisodicDataset(set, options); });
}

}  // namespace

TEST_CASE("episodes: N ways of K shots and further queries, all different, labelled from 0") {
  const FewShotData set = samples(60, 6);
  const EpisodicDataset tasks(set, {.num_episodes = 20, .num_ways = 3, .num_shots = 2, .num_queries = 4});
  CHECK(tasks.size() == 20);
  std::set<Numbers> class_lists;
  for (std::int64_t task = 0; task < tasks.size(); ++task) {
    const Episode episode = tasks.get(task);
    CHECK(numbers(episode.support_data.gt_label) == Numbers{0, 0, 1, 1, 2, 2});
    CHECK(numbers(episode.query_data.gt_label) == Numbers{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
    CHECK(episode.support_data.img.shape() == Shape{6, 1});
    CHECK(episode.query_data.img.shape() == Shape{12, 1});
    REQUIRE(episode.class_ids.size() == 3);
    CHECK(std::set<std::int64_t>(episode.class_ids.begin(), episode.class_ids.end()).size() == 3);
    class_lists.insert(episode.class_ids);

    std::set<double> drawn;
    for (const FewShotData* part : {&episode.support_data, &episode.query_data}) {
      const Doubles images = values(part->img);
      const Numbers labels = numbers(part->gt_label);
      for (std::size_t i = 0; i < images.size(); ++i) {
        drawn.insert(images[i]);
        // The label stands for the class that the sample has in the set.
        CHECK(10 * (static_cast<std::int64_t>(images[i]) % 6) ==
              episode.class_ids[static_cast<std::size_t>(labels[i])]);
      }
    }
    CHECK(drawn.size() == 18);
  }
  CHECK(class_lists.size() > 10);  // also their order is random
}

TEST_CASE("episodes: what an episode is depends on the seed and its number alone") {
  const FewShotData set = samples(40, 4);
  const EpisodicDatasetOptions options{.num_episodes = 5, .num_ways = 2, .num_shots = 1, .num_queries = 3};
  const EpisodicDataset tasks(set, options), again(set, options);
  EpisodicDatasetOptions more = options, seeded = options;
  more.num_episodes = 9;
  seeded.episodes_seed = 1;
  again.get(3);
  const Episode episode = tasks.get(2);
  const auto same = [&](const Episode& other) {
    return other.class_ids == episode.class_ids && equal(other.support_data.img, episode.support_data.img) &&
           equal(other.query_data.img, episode.query_data.img);
  };
  CHECK(same(again.get(2)));
  CHECK(same(EpisodicDataset(set, more).get(2)));
  CHECK_FALSE(same(tasks.get(1)));
  CHECK_FALSE(same(EpisodicDataset(set, seeded).get(2)));
}

TEST_CASE("episodes: they are on the device of the set, and of its features once these are there") {
  EpisodicDataset tasks(samples(40, 4, Device::host(1)), {.num_ways = 2, .num_queries = 3});
  const Episode images = tasks.get(4);
  CHECK(images.query_data.img.device() == Device::host(1));
  CHECK(images.query_data.gt_label.device() == Device::host(1));
  CHECK_FALSE(images.query_data.feats.defined());
  tasks.cache_feats(tasks.set().img * 2);
  const Episode feats = tasks.get(4);
  CHECK_FALSE(feats.query_data.img.defined());
  CHECK(values(feats.query_data.feats) == values(images.query_data.img * 2));
  CHECK(values(feats.support_data.feats) == values(images.support_data.img * 2));
  CHECK(missing(message_of<InvalidArgument>([&] { tasks.cache_feats(counting({39, 1})); }), {"40", "[39, 1]"}) == "");
}

TEST_CASE("episodes: a set is split by lists of classes that have none in common") {
  const FewShotData set = samples(8, 4);  // labels 0 10 20 30 0 10 20 30
  const std::vector<FewShotData> parts = split_classes(set, {{30, 0}, {20}});
  REQUIRE(parts.size() == 2);
  CHECK(values(parts[0].img) == Doubles{0, 3, 4, 7});
  CHECK(numbers(parts[0].gt_label) == Numbers{1, 0, 1, 0});
  CHECK(values(parts[1].img) == Doubles{2, 6});
  CHECK(numbers(parts[1].gt_label) == Numbers{0, 0});
  const auto message = [&](const std::vector<Numbers>& lists) {
    return message_of<InvalidArgument>([&] { split_classes(set, lists); });
  };
  CHECK(missing(message({{0, 10}, {20, 10}}), {"[split_classes]", "class 10 again"}) == "");
  CHECK(missing(message({{0, 0}}), {"class 0 again"}) == "");
  CHECK(missing(message({{0}, {11}}), {"none of class 11"}) == "");
}

TEST_CASE("episodes: what does not fit is refused") {
  const FewShotData set = samples(40, 4);
  CHECK(missing(episodes_refusal(set, {.num_episodes = 0}), {"[EpisodicDataset]", "num_episodes", "got 0"}) == "");
  CHECK(missing(episodes_refusal(set, {.num_ways = 0}), {"num_ways", "got 0"}) == "");
  CHECK(missing(episodes_refusal(set, {.num_ways = 2, .num_shots = -1}), {"num_shots", "got -1"}) == "");
  CHECK(missing(episodes_refusal(set, {.num_ways = 2, .num_queries = 0}), {"num_queries", "got 0"}) == "");
  CHECK(missing(episodes_refusal(set, {.num_ways = 5}), {"at least 5 classes", "got 4"}) == "");
  CHECK(missing(episodes_refusal(set, {.num_ways = 2, .num_shots = 4, .num_queries = 7}),
                {"4 + 7", "got 10 of class 0"}) == "");
  CHECK(episodes_refusal(set, {.num_ways = 4, .num_shots = 3, .num_queries = 7}) == "no error");
  CHECK(missing(episodes_refusal(set, {.num_ways = 2, .num_shots = INT64_MAX, .num_queries = INT64_MAX}), {"got 10"}) ==
        "");
  FewShotData wrong = set;
  wrong.gt_label = wrong.gt_label.narrow(0, 0, 39);
  CHECK(missing(episodes_refusal(wrong, {.num_ways = 2}), {"i64[40]", "i64[39]"}) == "");
  wrong.gt_label = set.gt_label.to(DType::f64);
  CHECK(missing(episodes_refusal(wrong, {.num_ways = 2}), {"i64[40]", "f64[40]"}) == "");
  wrong = set;
  wrong.feats = wrong.img;
  CHECK(missing(episodes_refusal(wrong, {.num_ways = 2}), {"images or features", "both"}) == "");
  CHECK(missing(episodes_refusal({}, {}), {"images or features", "neither"}) == "");
  const EpisodicDataset tasks(set, {.num_episodes = 3, .num_ways = 2, .num_queries = 5});
  CHECK(missing(message_of<InvalidArgument>([&] { tasks.get(3); }), {"below 3", "got 3"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { tasks.get(-1); }), {"got -1"}) == "");
}
