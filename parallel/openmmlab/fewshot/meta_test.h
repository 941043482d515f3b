// meta_test: how well a few-shot model does on tasks that it has never seen. After mmfewshot's single_gpu_meta_test and
// multi_gpu_meta_test.
//
//   const EpisodicDataset tasks(novel, {.num_episodes = 600, .num_ways = 5, .num_shots = 1});
//   const MetaTestResult result = meta_test(proto_net, tasks);
//   run_ranks(4, [&](Communicator& communicator) {        // or: each rank takes every fourth task
//     auto model = deep_copy(proto_net);
//     model.to(communicator.device());
//     if (const auto result = meta_test(model, tasks, {}, communicator)) …   // rank 0
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/fewshot/data.h"
#include "lockstep/parallel/openmmlab/fewshot/meta_test_parallel.h"
#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"
#include "lockstep/tensor/data/random_engine.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"

namespace lockstep {

struct TaskResult {
  std::int64_t task_id = 0, correct = 0, count = 0;  // queries with the right answer, and in all
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(count); }
  friend bool operator==(const TaskResult&, const TaskResult&) = default;
};

struct MetaTestResult {
  std::vector<TaskResult> tasks;  // in their order
  double accuracy_mean = 0;
  double accuracy_confidence = 0;  // half the width of the interval: z * std / sqrt(n), std that of the population
};

// Training on the samples of a task.
struct SupportTraining {
  std::int64_t num_steps = 100;
  SgdOptions optimizer = {.lr = 0.01, .momentum = 0.9, .dampening = 0.9, .weight_decay = 1e-3};
  // Makes another optimizer than SGD, over the parameters that require a gradient.
  std::function<std::unique_ptr<Optimizer>(std::vector<Parameter>)> build_optimizer = {};
};

// Batch sizes: 0 takes everything at once.
struct MetaTestConfig {
  struct Support {
    std::int64_t batch_size = 0;
    bool drop_last = false;                     // when training, a last batch that is smaller is left out
    std::optional<SupportTraining> train = {};  // none: one pass over the samples, without gradients
  } support = {};
  struct Query {
    std::int64_t batch_size = 0;
  } query = {};
  struct TestSet {
    std::int64_t batch_size = 64;
  } test_set = {};
  // Computes the features of the whole test set once, before the tasks, and gives the model those in place of images.
  // For models whose backbone stays as it is.
  bool fast_test = false;
  double confidence = 0.95;
  std::uint64_t seed = 0;
  std::function<void(const TaskResult&)> on_task = {};  // called after each task of this rank, in its thread
};

// What meta_test asks of a model. Its forward(FewShotData, FewShotMode) returns a Tensor: in mode support the loss, or
// nothing where it is not trained on the samples; in mode query scores [n, ways]; in mode extract_feat features [n,
// ..].
template <class M>
concept FewShotModel = IsModule<M> && requires(M& model, const FewShotData& data, const MetaTestConfig& config) {
  model.before_meta_test(config);
  model.before_forward_support();
  model.before_forward_query();
  { std::as_const(model)(data, FewShotMode::query) } -> std::same_as<Tensor>;
};

namespace detail {

// Of a confidence level of the table .50 .80 .90 .95 .98 .99; InvalidArgument that lists them for any other.
LOCKSTEP_API double z_score(double confidence);
LOCKSTEP_API void check_meta_test(const MetaTestConfig& config, std::int64_t tasks);
LOCKSTEP_API MetaTestResult summarise(std::vector<TaskResult> tasks, double confidence);
// Brings the tasks of all ranks together, at rank 0.
LOCKSTEP_API std::optional<MetaTestResult> collect_tasks(const std::vector<TaskResult>& mine, double confidence,
                                                         Communicator& communicator);
LOCKSTEP_API std::unique_ptr<Optimizer> support_optimizer(const ModuleBase& task, const SupportTraining& train);
LOCKSTEP_API void check_support_loss(const Tensor& loss);
// How many scores are highest at the label. Blocks.
LOCKSTEP_API std::int64_t count_correct(const Tensor& scores, const Tensor& gt_label);

// This thread's random numbers depend on the seed and the task alone while it lives.
class LOCKSTEP_API TaskSeed {
 public:
  TaskSeed(std::uint64_t seed, std::int64_t task);
  TaskSeed(const TaskSeed&) = delete;
  TaskSeed& operator=(const TaskSeed&) = delete;
  ~TaskSeed();

 private:
  std::uint64_t seed_, stream_, counter_;
};

// Batches of the samples of a task, over and over, each time in another order, drawn from the thread's random numbers.
class LOCKSTEP_API SupportBatches {
 public:
  SupportBatches(const FewShotData& data, const MetaTestConfig::Support& config);
  FewShotData next();

 private:
  const FewShotData& data_;
  std::size_t batch_size_, next_ = 0;
  bool whole_, drop_last_;
  std::vector<std::int64_t> order_;
  RandomEngine random_;
};

template <class F>
void for_each_batch(const FewShotData& data, std::int64_t batch_size, F&& f) {
  const std::int64_t count = data.count(), length = batch_size > 0 ? batch_size : count;
  for (std::int64_t start = 0; start < count; start += length) f(data.slice(start, length));
}

template <class M>
inline constexpr bool kIsMetaTestParallel = false;
template <class M>
inline constexpr bool kIsMetaTestParallel<MetaTestParallel<M>> = true;

// The model in a wrapper, in a wrapper of that, and so on. A few-shot model may have a module() of its own.
template <IsModule M>
const auto& unwrapped(const M& model) {
  if constexpr (kIsMetaTestParallel<M>)
    return unwrapped(model.module());
  else if constexpr (!FewShotModel<M> && requires { model.module(); })
    return unwrapped(model.module());
  else
    return model;
}

template <FewShotModel M>
TaskResult test_single_task(const MetaTestParallel<M>& prepared, const Episode& episode, std::int64_t task_id,
                            const MetaTestConfig& config) {
  const TaskSeed seed(config.seed, task_id);
  MetaTestParallel<M> task = deep_copy(prepared);
  task.before_forward_support();
  if (const std::optional<SupportTraining>& train = config.support.train) {
    const GradMode grad_mode(true);
    const std::unique_ptr<Optimizer> optimizer = support_optimizer(task, *train);
    SupportBatches batches(episode.support_data, config.support);
    for (std::int64_t step = 0; step < train->num_steps; ++step) {
      const Tensor loss = task(batches.next(), FewShotMode::support);
      check_support_loss(loss);
      optimizer->zero_grad();
      loss.backward();
      optimizer->step();
    }
  } else {
    const NoGrad no_grad;
    for_each_batch(episode.support_data, config.support.batch_size,
                   [&](const FewShotData& batch) { task(batch, FewShotMode::support); });
  }
  task.before_forward_query();
  const NoGrad no_grad;
  const TrainingScope evaluation(false);
  TaskResult result{.task_id = task_id, .count = episode.query_data.count()};
  for_each_batch(episode.query_data, config.query.batch_size, [&](const FewShotData& batch) {
    result.correct += count_correct(task(batch, FewShotMode::query), batch.gt_label);
  });
  return result;
}

template <FewShotModel M, class Tasks>
Tensor test_set_features(const MetaTestParallel<M>& model, const Tasks& tasks, const MetaTestConfig& config) {
  const NoGrad no_grad;
  const TrainingScope evaluation(false);
  std::vector<Tensor> feats;
  for_each_batch(tasks.set(), config.test_set.batch_size, [&](const FewShotData& batch) {
    feats.push_back(model(batch, FewShotMode::extract_feat).to(batch.content().device()));
  });
  return cat(feats);
}

// The tasks first, first + step, …
template <FewShotModel M, class Tasks>
std::vector<TaskResult> test_tasks(const M& model, const Tasks& tasks, const MetaTestConfig& config, std::int64_t first,
                                   std::int64_t step) {
  check_meta_test(config, tasks.size());
  std::vector<TaskResult> results;
  if (first >= tasks.size()) return results;
  MetaTestParallel<M> prepared(deep_copy(model));
  revert_sync_batchnorm(prepared);  // each rank has tasks of its own
  const auto test = [&](const Tasks& given) {
    for (std::int64_t id = first; id < given.size(); id += step) {
      results.push_back(test_single_task(prepared, given.get(id), id, config));
      if (config.on_task) config.on_task(results.back());
    }
  };
  const TaskSeed seed(config.seed, -1);
  constexpr bool kCaches = requires(Tasks & changed, const Tensor& feats) {
    tasks.set();
    changed.cache_feats(feats);
  };
  if (!config.fast_test) {
    prepared.before_meta_test(config);
    test(tasks);
  } else if constexpr (kCaches) {
    Tasks fast = tasks;
    fast.cache_feats(test_set_features(prepared, tasks, config));
    prepared.before_meta_test(config);
    test(fast);
  } else {
    LOCKSTEP_CHECK(!config.fast_test, "[meta_test] expected tasks with set() and cache_feats() for fast_test");
  }
  return results;
}

}  // namespace detail

// Deep-copies the model, or that in a wrapper (DataParallel, MMDistributedDataParallel), once for all tasks and again
// for each: the model itself is not changed, and norms that share statistics are ones by themselves in the copies. Per
// task: before_forward_support, the support phase, before_forward_query, the queries in evaluation mode and without
// gradients. `tasks` is a Dataset of Episodes. What a task gives depends on the model, the task and config.seed alone.
// Computes where the model is; blocks. Throws InvalidArgument for no tasks, a confidence that is not in the table, and
// a config that does not fit the model.
template <IsModule M, class Tasks>
MetaTestResult meta_test(const M& model, const Tasks& tasks, const MetaTestConfig& config = {}) {
  return detail::summarise(detail::test_tasks(detail::unwrapped(model), tasks, config, 0, 1), config.confidence);
}

// The same by all ranks together: rank r tests tasks r, r + size, … with its own model, which is to have the same
// parameters as the others'. Ranks communicate at the end only, and then wait for one another for the communicator's
// timeout. Rank 0 gets the results, the same as of one rank alone; the others get none.
template <IsModule M, class Tasks>
std::optional<MetaTestResult> meta_test(const M& model, const Tasks& tasks, const MetaTestConfig& config,
                                        Communicator& communicator) {
  return detail::collect_tasks(
      detail::test_tasks(detail::unwrapped(model), tasks, config, communicator.rank(), communicator.size()),
      config.confidence, communicator);
}

}  // namespace lockstep
