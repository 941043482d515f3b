#include "lockstep/parallel/openmmlab/fewshot/meta_test.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/openmmlab/fewshot/episodes.h"
#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "parallel/support.h"

namespace {

using namespace parallel_test;
using Numbers = std::vector<std::int64_t>;

// Task i has 4 queries, of which right[i] have label 0; its samples are the numbers 0 … 4.
struct Tasks {
  Numbers right;
  std::int64_t size() const { return static_cast<std::int64_t>(right.size()); }
  Episode get(std::int64_t index) const {
    Numbers labels(4, 1);
    std::fill_n(labels.begin(), right[static_cast<std::size_t>(index)], 0);
    return {.support_data = {.img = counting({5, 1}, Device::cpu(), 0), .gt_label = zeros({5}, {.dtype = DType::i64})},
            .query_data = {.img = counting({4, 1}, Device::cpu(), static_cast<double>(index)),
                           .gt_label = from_data(labels, {4})}};
  }
};

// What the copies of a Probe have been through, together.
struct Diary {
  std::vector<std::string> lines;
  void operator()(const std::string& line) { lines.push_back(line); }
};

// Answers 0 to everything, or what random numbers say.
struct Probe : Module<Probe> {
  Parameter weight{counting({1})};
  Buffer batches{zeros({1}, {.dtype = DType::f64})};
  Tensor plain = counting({1});
  std::shared_ptr<Diary> diary;
  bool guesses = false, has_loss = true, bad_scores = false;
  int copies_seen = 0;  // calls of before_forward_support in this copy

  Tensor forward(const FewShotData& data, FewShotMode mode) const {
    const Doubles given = values(data.content());
    if (diary) {
      std::string line = to_string(mode);
      for (const double value : given) line += cat(" ", value);
      (*diary)(line + (GradMode::enabled() ? " grad" : "") + (is_training() ? " training" : ""));
    }
    if (mode == FewShotMode::extract_feat) return data.img * 10;
    if (mode == FewShotMode::support) {
      const NoGrad no_grad;
      batches.tensor().add_(1);
    }
    if (mode == FewShotMode::support) return has_loss ? sum(weight.on(data.content().device()) * 3) : Tensor();
    if (guesses) return rand({data.count(), 2}, {.device = data.content().device()});
    if (bad_scores) return zeros({data.count()});
    return zeros({data.count(), 2}, {.device = data.content().device()});
  }
  void before_meta_test(const MetaTestConfig& config) {
    if (diary) (*diary)(cat("before_meta_test ", config.seed) + (guesses ? cat(" ", rand({1}).item<double>()) : ""));
    plain = plain + 1;
    const NoGrad no_grad;
    batches.tensor().add_(10);
  }
  void before_forward_support() {
    if (diary) (*diary)(cat("before_forward_support ", ++copies_seen, " ", values(plain)[0]));
    plain = plain + 1;
  }
  void before_forward_query() {
    if (diary)
      (*diary)(cat("before_forward_query ", weight.tensor().item<double>(), " ", batches.tensor().item<double>()));
  }
  void members(Members& m) override { m("weight", weight), m("batches", batches); }
};

// Is trained with a norm in it.
struct NormedProbe : Module<NormedProbe> {
  BatchNorm1d norm{1};
  Tensor forward(const FewShotData& data, FewShotMode mode) const {
    if (mode == FewShotMode::support) return sum(square(norm(data.img.to(DType::f32))));
    return zeros({data.count(), 2}, {.device = data.content().device()});
  }
  void before_meta_test(const MetaTestConfig&) {}
  void before_forward_support() {}
  void before_forward_query() {}
  void members(Members& m) override { m("norm", norm); }
};

Probe with_diary() {
  Probe probe;
  probe.diary = std::make_shared<Diary>();
  return probe;
}

const Tasks kTasks{{2, 4, 1, 3}};

template <class T = Tasks>
std::string probe_refusal(const Probe& probe, const MetaTestConfig& config, const T& tasks = kTasks) {
  return message_of<InvalidArgument>([&] { meta_test(probe, tasks, config); });
}

// What `ranks` ranks say: rank 0's result, and which tasks each rank has tested.
struct Dealt {
  std::optional<MetaTestResult> result;
  std::vector<Numbers> tested;
  int with_result = 0;
};
Dealt deal(int ranks, const Probe& probe, const Tasks& tasks, const MetaTestConfig& config = {}) {
  auto of_ranks = run_ranks(ranks, [&](Communicator& communicator) {
    Numbers tested;
    MetaTestConfig mine = config;
    mine.on_task = [&](const TaskResult& task) { tested.push_back(task.task_id); };
    Probe model = deep_copy(probe);
    model.to(communicator.device());
    auto result = meta_test(model, tasks, mine, communicator);
    return std::pair(std::move(result), tested);
  });
  Dealt dealt;
  for (auto& [result, tested] : of_ranks) {
    dealt.tested.push_back(tested);
    dealt.with_result += result.has_value();
  }
  dealt.result = std::move(of_ranks.front().first);
  return dealt;
}

}  // namespace

TEST_CASE("meta_test: the mean of the tasks' accuracies and the interval of a level in the table") {
  const MetaTestResult result = meta_test(Probe(), kTasks);
  CHECK(result.tasks == std::vector<TaskResult>{{0, 2, 4}, {1, 4, 4}, {2, 1, 4}, {3, 3, 4}});
  CHECK(result.accuracy_mean == 0.625);
  // Differences from the mean: -1/8, 3/8, -3/8, 1/8. Squares: 20/64, their mean 5/64; the root of that over 4 tasks.
  const double error = 0.13975424859373686;
  for (const auto& [level, z] : std::vector<std::pair<double, double>>{
           {.50, .674}, {.80, 1.282}, {.90, 1.645}, {.95, 1.960}, {.98, 2.326}, {.99, 2.576}}) {
    CHECK(meta_test(Probe(), kTasks, {.confidence = level}).accuracy_confidence == Approx(z * error).epsilon(1e-14));
  }
  CHECK(result.accuracy_confidence == Approx(1.960 * error).epsilon(1e-14));
  CHECK(meta_test(Probe(), Tasks{{3}}).accuracy_confidence == 0);
  for (const double level : {0.0, 0.94, 0.951, 1.0, -0.95})
    CHECK(missing(probe_refusal(Probe(), {.confidence = level}),
                  {"[meta_test]", "0.5, 0.8, 0.9, 0.95, 0.98 or 0.99", cat("got ", level)}) == "");
}

TEST_CASE("meta_test: the phases of a task, each task with a copy of its own") {
  const Probe probe = with_diary();
  meta_test(probe, Tasks{{0, 0}}, {.support = {.batch_size = 2}, .query = {.batch_size = 3}, .seed = 8});
  const auto task = [](const std::string& queries, const std::string& last) {
    return std::vector<std::string>{
        "before_forward_support 1 2", "support 0 1 training", "support 2 3 training", "support 4 training",
        "before_forward_query 1 13",  "query " + queries,     "query " + last};
  };
  std::vector<std::string> expected{"before_meta_test 8"};
  for (const auto& lines : {task("0 1 2", "3"), task("1 2 3", "4")})
    expected.insert(expected.end(), lines.begin(), lines.end());
  CHECK(probe.diary->lines == expected);
}

TEST_CASE("meta_test: training on the samples, in batches of another order for each pass") {
  Probe probe = with_diary();
  MetaTestConfig config{.support = {.batch_size = 2}};
  config.support.train = {.num_steps = 6, .optimizer = {.lr = 0.03125}};
  const NoGrad of_the_caller;  // does not keep the task from being trained
  meta_test(probe, Tasks{{0}}, config);
  const std::vector<std::string> lines = probe.diary->lines;
  REQUIRE(lines.size() == 10);
  std::vector<Numbers> passes(2);
  for (std::size_t step = 0; step < 6; ++step) {
    std::string line = lines[2 + step];
    CHECK(missing(line, {"support ", " grad training"}) == "");
    for (const char c : line)
      if (c >= '0' && c <= '4') passes[step / 3].push_back(c - '0');
  }
  CHECK(passes[0] != passes[1]);
  for (Numbers& pass : passes) {
    CHECK(pass != Numbers{0, 1, 2, 3, 4});
    std::sort(pass.begin(), pass.end());
    CHECK(pass == Numbers{0, 1, 2, 3, 4});
  }
  CHECK(lines[8] == "before_forward_query 0.4375 16");  // 1 - 6 * 3 / 32
  CHECK(lines[9] == "query 0 1 2 3");

  config.support.drop_last = true;
  probe.diary->lines.clear();
  meta_test(probe, Tasks{{0}}, config);
  for (std::size_t step = 0; step < 6; ++step) CHECK(probe.diary->lines[2 + step].size() == lines[2].size());

  config.support = {.train = SupportTraining{.num_steps = 1, .build_optimizer = [](std::vector<Parameter> trained) {
                                               return std::make_unique<Adam>(std::move(trained),
                                                                             AdamOptions{.lr = 0.5});
                                             }}};
  probe.diary->lines.clear();
  meta_test(probe, Tasks{{0}}, config);
  CHECK(probe.diary->lines[2] == "support 0 1 2 3 4 grad training");
  CHECK(missing(probe.diary->lines[3], {"before_forward_query 0.5"}) == "");
}

TEST_CASE("meta_test: the model itself is not touched, nor is the caller's thread") {
  Probe probe;
  probe.weight.set_grad(counting({1}));
  MetaTestConfig config{.seed = 5};
  config.support.train = {.num_steps = 2};
  manual_seed(3);
  const double next = rand({1}).item<double>();
  for (const bool training : {true, false}) {
    probe.train(training);
    manual_seed(3);
    probe.guesses = true;
    meta_test(probe, kTasks, config);
    CHECK(rand({1}).item<double>() == next);
    CHECK(GradMode::enabled());
    CHECK(probe.is_training() == training);
    CHECK(probe.weight.tensor().item<double>() == 1);
    CHECK(probe.weight.grad().item<double>() == 1);
    CHECK(probe.batches.tensor().item<double>() == 0);
    CHECK(values(probe.plain) == Doubles{1});
    CHECK(probe.copies_seen == 0);
  }
}

TEST_CASE("meta_test: tasks are dealt round-robin, and rank 0 has the results of one rank") {
  const Tasks tasks{{2, 4, 1, 3, 0}};
  const MetaTestResult alone = meta_test(Probe(), tasks);
  for (const int ranks : {1, 2, 3, 7}) {
    const Dealt dealt = deal(ranks, Probe(), tasks);
    REQUIRE(dealt.result);
    CHECK(dealt.with_result == 1);
    CHECK(dealt.result->tasks == alone.tasks);
    CHECK(dealt.result->accuracy_mean == alone.accuracy_mean);
    CHECK(dealt.result->accuracy_confidence == alone.accuracy_confidence);
    std::vector<Numbers> expected(static_cast<std::size_t>(ranks));
    for (std::int64_t task = 0; task < 5; ++task) expected[static_cast<std::size_t>(task % ranks)].push_back(task);
    CHECK(dealt.tested == expected);
  }
}

TEST_CASE("meta_test: norms that share statistics are each rank's own in its tasks") {
  MetaTestConfig config;
  config.support.train = {.num_steps = 2};
  const auto converted =
      run_ranks(2,
                [&](Communicator& communicator) {
                  NormedProbe model;
                  model.to(communicator.device());
                  convert_sync_batchnorm(model, communicator);
                  meta_test(model, Tasks{{2, 4, 1}}, config, communicator);  // rank 0 has one task more
                  return revert_sync_batchnorm(model);
                },
                {.timeout = Milliseconds(20'000)});
  CHECK(converted == std::vector<int>{1, 1});
}

TEST_CASE("meta_test: random numbers depend on the seed and the task alone") {
  Probe probe;
  probe.guesses = true;
  const Tasks tasks{Numbers(24, 2)};
  const std::vector<TaskResult> alone = meta_test(probe, tasks, {.seed = 1}).tasks;
  manual_seed(77);
  CHECK(meta_test(probe, tasks, {.seed = 1}).tasks == alone);
  for (const int ranks : {2, 3}) CHECK(deal(ranks, probe, tasks, {.seed = 1}).result->tasks == alone);
  CHECK(meta_test(probe, tasks, {.seed = 2}).tasks != alone);
  // Also what the model draws before the tasks.
  const Probe first = with_diary(), second = with_diary();
  for (Probe drawing : {first, second}) {
    drawing.guesses = true;
    manual_seed(drawing.diary == first.diary ? 1 : 2);
    meta_test(drawing, Tasks{{0}}, {.seed = 1});
  }
  CHECK(first.diary->lines == second.diary->lines);
  CHECK(first.diary->lines[0].size() > std::string("before_meta_test 1 ").size());
  Numbers correct;
  for (const TaskResult& task : alone) correct.push_back(task.correct);
  CHECK(std::adjacent_find(correct.begin(), correct.end(), std::not_equal_to<>()) != correct.end());
}

TEST_CASE("meta_test: ranks that fail are known, and say why") {
  Probe probe;
  probe.bad_scores = true;
  const std::string message = message_of<CommError>([&] { deal(2, probe, kTasks); });
  CHECK(missing(message, {"[meta_test]", "scores [4, ways]", "f32[4]"}) == "");
}

TEST_CASE("meta_test: a model in a wrapper is taken out of it") {
  const Probe probe;
  using Signature = Tensor(FewShotData, FewShotMode);
  const std::vector<TaskResult> expected = meta_test(probe, kTasks).tasks;
  CHECK(meta_test(DataParallel<Probe, Signature>(probe, {.devices = devices_at({1, 2})}), kTasks).tasks == expected);
  CHECK(meta_test(MetaTestParallel(deep_copy(probe)), kTasks).tasks == expected);
  const auto of_ranks = run_ranks(2, [](Communicator& communicator) {
    const MMDistributedDataParallel net(Probe(), communicator);
    return meta_test(net, kTasks, {}, communicator);
  });
  CHECK(of_ranks[0]->tasks == expected);
}

TEST_CASE("meta_test: fast_test computes the features of the test set once") {
  FewShotData set{.img = counting({30, 1}, Device::cpu(), 0), .gt_label = zeros({30}, {.dtype = DType::i64})};
  const EpisodicDataset tasks(set, {.num_episodes = 3, .num_ways = 1, .num_shots = 2, .num_queries = 3});
  const Probe fast = with_diary(), slow = with_diary();
  const MetaTestResult result = meta_test(fast, tasks, {.test_set = {.batch_size = 20}, .fast_test = true});
  CHECK(result.tasks == meta_test(slow, tasks).tasks);
  const std::vector<std::string>& lines = fast.diary->lines;
  REQUIRE(lines.size() == slow.diary->lines.size() + 2);
  CHECK(missing(lines[0], {"extract_feat 0 1 2", " 19"}) == "");
  CHECK(lines[1] == "extract_feat 20 21 22 23 24 25 26 27 28 29");
  const Episode first = tasks.get(0);
  const Doubles images = values(first.support_data.img);
  CHECK(lines[4] == cat("support ", 10 * images[0], " ", 10 * images[1], " training"));
  CHECK(slow.diary->lines[2] == cat("support ", images[0], " ", images[1], " training"));
  CHECK(tasks.set().img.defined());  // the tasks themselves are as they were
}

TEST_CASE("meta_test: what does not fit is refused") {
  CHECK(missing(probe_refusal(Probe(), {}, Tasks{}), {"[meta_test]", "at least one task", "got 0"}) == "");
  CHECK(missing(probe_refusal(Probe(), {.fast_test = true}), {"set() and cache_feats() for fast_test"}) == "");
  CHECK(missing(probe_refusal(Probe(), {.support = {.batch_size = -1}}), {"batch sizes", "-1 (support)"}) == "");
  CHECK(missing(probe_refusal(Probe(), {.query = {.batch_size = -2}}), {"-2 (query)"}) == "");
  CHECK(missing(probe_refusal(Probe(), {.test_set = {.batch_size = -3}}), {"-3 (test_set)"}) == "");
  MetaTestConfig config;
  config.support.train = {.num_steps = 0};
  CHECK(missing(probe_refusal(Probe(), config), {"num_steps", "got 0"}) == "");
  config.support = {.batch_size = 6, .drop_last = true, .train = SupportTraining{.num_steps = 1}};
  CHECK(missing(probe_refusal(Probe(), config), {"one batch of 6", "got 5 samples"}) == "");
  config.support.batch_size = 0;
  Probe probe;
  probe.has_loss = false;
  CHECK(missing(probe_refusal(probe, config), {"loss", "'support'", "got nothing"}) == "");
  probe.has_loss = true;
  probe.set_requires_grad(false);
  CHECK(missing(probe_refusal(probe, config), {"require a gradient", "got none"}) == "");
  probe.bad_scores = true;
  CHECK(missing(probe_refusal(probe, {}), {"scores [4, ways]", "'query'", "f32[4]"}) == "");
}
