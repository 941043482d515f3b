#include "lockstep/parallel/openmmlab/fewshot/meta_test.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

double z_score(double confidence) {
  struct Level {
    double confidence, z;
  };
  constexpr Level kLevels[] = {{.50, .674}, {.80, 1.282}, {.90, 1.645}, {.95, 1.960}, {.98, 2.326}, {.99, 2.576}};
  for (const Level& level : kLevels)
    if (std::abs(level.confidence - confidence) < 1e-9) return level.z;
  fail<InvalidArgument>("[meta_test] expected a confidence of 0.5, 0.8, 0.9, 0.95, 0.98 or 0.99, got ", confidence);
}

void check_meta_test(const MetaTestConfig& config, std::int64_t tasks) {
  z_score(config.confidence);
  LOCKSTEP_CHECK(tasks > 0, "[meta_test] expected at least one task, got ", tasks);
  LOCKSTEP_CHECK(config.support.batch_size >= 0 && config.query.batch_size >= 0 && config.test_set.batch_size >= 0,
                 "[meta_test] expected batch sizes of at least 0, got ", config.support.batch_size, " (support), ",
                 config.query.batch_size, " (query) and ", config.test_set.batch_size, " (test_set)");
  if (config.support.train)
    LOCKSTEP_CHECK(config.support.train->num_steps > 0, "[meta_test] expected num_steps of at least 1, got ",
                   config.support.train->num_steps);
}

MetaTestResult summarise(std::vector<TaskResult> tasks, double confidence) {
  MetaTestResult result{.tasks = std::move(tasks)};
  const auto count = static_cast<double>(result.tasks.size());
  for (const TaskResult& task : result.tasks) result.accuracy_mean += task.accuracy();
  result.accuracy_mean /= count;
  double squares = 0;
  for (const TaskResult& task : result.tasks) {
    const double difference = task.accuracy() - result.accuracy_mean;
    squares += difference * difference;
  }
  result.accuracy_confidence = z_score(confidence) * std::sqrt(squares / count / count);
  return result;
}

std::optional<MetaTestResult> collect_tasks(const std::vector<TaskResult>& mine, double confidence,
                                            Communicator& communicator) {
  std::ostringstream message;
  for (const TaskResult& task : mine) message << task.task_id << ' ' << task.correct << ' ' << task.count << '\n';
  const std::vector<std::string> ranks = communicator.all_gather_bytes(message.str());
  if (communicator.rank() != 0) return std::nullopt;
  std::vector<TaskResult> all;
  for (const std::string& rank : ranks) {
    std::istringstream text(rank);
    for (TaskResult task; text >> task.task_id >> task.correct >> task.count;) all.push_back(task);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.task_id < b.task_id; });
  return summarise(std::move(all), confidence);
}

std::unique_ptr<Optimizer> support_optimizer(const ModuleBase& task, const SupportTraining& train) {
  std::vector<Parameter> trained = task.parameters();
  std::erase_if(trained, [](const Parameter& parameter) { return !parameter.requires_grad(); });
  LOCKSTEP_CHECK(!trained.empty(),
                 "[meta_test] expected parameters that require a gradient for support.train, got none");
  if (train.build_optimizer) return train.build_optimizer(std::move(trained));
  return std::make_unique<SGD>(std::move(trained), train.optimizer);
}

void check_support_loss(const Tensor& loss) {
  LOCKSTEP_CHECK(loss.defined(),
                 "[meta_test] expected the loss of the samples in mode 'support', as support.train asks "
                 "for training, got nothing");
}

std::int64_t count_correct(const Tensor& scores, const Tensor& gt_label) {
  LOCKSTEP_CHECK(scores.defined() && scores.rank() == 2 && scores.size(0) == gt_label.count(),
                 "[meta_test] expected scores [", gt_label.count(), ", ways] in mode 'query', got ", scores);
  const auto answers = argmax(scores, 1).to_vector<std::int64_t>(), labels = gt_label.to_vector<std::int64_t>();
  std::int64_t correct = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) correct += answers[i] == labels[i];
  return correct;
}

TaskSeed::TaskSeed(std::uint64_t seed, std::int64_t task)
    : seed_(thread_context().random_seed),
      stream_(thread_context().random_stream),
      counter_(thread_context().random_counter) {
  thread_context().random_seed = seed;
  thread_context().random_stream = RandomEngine(seed, static_cast<std::uint64_t>(task))();
  thread_context().random_counter = 0;
}
TaskSeed::~TaskSeed() {
  thread_context().random_seed = seed_;
  thread_context().random_stream = stream_;
  thread_context().random_counter = counter_;
}

SupportBatches::SupportBatches(const FewShotData& data, const MetaTestConfig::Support& config)
    : data_(data), drop_last_(config.drop_last), random_(RandomEngine::from_thread()) {
  const std::int64_t count = data.count();
  whole_ = config.batch_size == 0 || config.batch_size >= count;
  LOCKSTEP_CHECK(!drop_last_ || config.batch_size <= count, "[meta_test] expected at least one batch of ",
                 config.batch_size, " samples, as drop_last is set, got ", count, " samples");
  batch_size_ = static_cast<std::size_t>(whole_ ? count : config.batch_size);
  order_.resize(static_cast<std::size_t>(count));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  next_ = order_.size();
}

FewShotData SupportBatches::next() {
  if (whole_) return data_;
  const std::size_t left = order_.size() - next_;
  if (left == 0 || (drop_last_ && left < batch_size_)) {
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
    next_ = 0;
  }
  const std::size_t end = std::min(order_.size(), next_ + batch_size_);
  const std::vector<std::int64_t> batch(order_.begin() + static_cast<std::ptrdiff_t>(next_),
                                        order_.begin() + static_cast<std::ptrdiff_t>(end));
  next_ = end;
  return data_.select(batch);
}

}  // namespace lockstep::detail
