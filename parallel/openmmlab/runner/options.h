// What a Runner is told: how long to train, when to validate, what to log and to save, and what a program wants to do
// in between. The names are mmengine's.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/model/named_values.h"
#include "lockstep/parallel/openmmlab/runner/param_scheduler.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/optim/lr_schedule.h"

namespace lockstep {

class RunnerCore;

// Passes over the loader. Validates after every val_interval-th epoch from val_begin on, and after the last.
struct EpochBasedTrainLoop {
  std::int64_t max_epochs = 1;
  std::int64_t val_begin = 1, val_interval = 1;
};
// Batches, over and over again. The same in iterations.
struct IterBasedTrainLoop {
  std::int64_t max_iters = 1;
  std::int64_t val_begin = 1, val_interval = 1000;
};

// One of mmengine::LinearLR, mmengine::CosineAnnealingLR, … (param_scheduler.h), for all optimizers or for the one of
// that name of an OptimWrapperDict: {mmengine::LinearLR{.end = 5}, "generator"}. Or a scheduler of PyTorch's kind,
// stepped by the Runner after every epoch (a pass over the loader) or after every iteration; it sets the rates by
// itself, so there is one for each quantity of an optimizer, and none of the others beside it:
//   {LrScheduler(optim.optimizer(), LinearLR{.total_iters = 100}), {.by_epoch = false}}
struct ParamSchedulerOptions {
  bool by_epoch = true;
};
struct RunnerScheduler {
  template <std::derived_from<ParamScheduler> S>
  RunnerScheduler(S of_optimizer, ParamSchedulerOptions options = {})  // NOLINT: a scheduler is enough
      : scheduler(std::make_shared<S>(std::move(of_optimizer))), by_epoch(options.by_epoch) {}
  template <detail::SchedulerOfRange S>
  RunnerScheduler(const S& of_range, std::string optimizer = "")  // NOLINT: a scheduler is enough
      : range(std::make_shared<detail::RangeScheduler>(of_range, std::move(optimizer))) {}
  // A closed form (lockstep::LinearLR) has no range: mmengine::LinearLR is meant, or an LrScheduler of it.
  template <std::invocable<double, std::int64_t> Schedule>
  RunnerScheduler(const Schedule& closed_form, ParamSchedulerOptions options = {}) = delete;

  // One of the two.
  std::shared_ptr<ParamScheduler> scheduler = nullptr;
  std::shared_ptr<const detail::RangeScheduler> range = nullptr;  // as it is before a training
  bool by_epoch = true;                                           // of `scheduler`
};

// Every `interval` iterations rank 0 says: learning rate, momentum, and the means over these iterations and all ranks
// of what the steps have logged and of their seconds.
struct LoggerHook {
  std::int64_t interval = 10;
  std::function<void(const std::string& line)> sink = {};  // gets lines to show; the file scalars.json has the numbers
};

enum class Rule : std::uint8_t { greater, less };

// The metrics whose best checkpoints are kept: none, one, several, or "auto", which is the first of each validation.
class SaveBest {
 public:
  SaveBest() = default;
  SaveBest(const char* metric) : SaveBest(std::string(metric)) {}  // NOLINT: a name is enough
  SaveBest(std::string metric) {                                   // NOLINT
    if (!metric.empty()) metrics_.push_back(std::move(metric));
  }
  SaveBest(std::initializer_list<std::string> metrics) : metrics_(metrics) {}
  SaveBest(std::vector<std::string> metrics) : metrics_(std::move(metrics)) {}  // NOLINT
  const std::vector<std::string>& metrics() const { return metrics_; }

 private:
  std::vector<std::string> metrics_;
};

struct CheckpointHook {
  std::int64_t interval = 1;                    // below 1: none
  std::optional<bool> by_epoch = std::nullopt;  // the interval counts epochs; default: as the train loop does
  std::int64_t max_keep_ckpts = -1;             // the oldest beyond these are deleted; below 1: none is
  SaveBest save_best = {};                      // the checkpoint of its best value is kept as best_…
  std::optional<Rule> rule = std::nullopt;      // what is better; default: see infer_rule
  bool save_last = true;                        // also where training ends
};

// What is better of a metric of that name, in capitals or not: less of a loss; greater of what has acc, auc, precision,
// recall, top, AR@, mDice, mIoU in its name, or mAP, AP, AP50, AR, F1, IoU, Dice as a word of it. Throws
// InvalidArgument that asks for the rule where the name says nothing, or both.
LOCKSTEP_API Rule infer_rule(std::string_view metric);

// Hooks run in the order of their priorities, those of one priority in the order in which they are given. What the
// Runner does itself (schedulers, logging, checkpoints) comes after all of them.
enum class Priority : std::uint8_t {
  highest = 0,
  very_high = 10,
  high = 30,
  above_normal = 40,
  normal = 50,
  below_normal = 60,
  low = 70,
  very_low = 90,
  lowest = 100
};

// What a program does in between, on every rank. Unset functions are not called. A checkpoint is the content of a file,
// as it is written or was read: RunnerCore::save_checkpoint says what is in it. During and after an iteration (epoch),
// iter() (epoch()) of the runner counts those before and those up to it, respectively.
struct RunnerHook {
  using Function = std::function<void(RunnerCore&)>;
  Function before_train = {}, after_train = {};
  Function before_train_epoch = {}, after_train_epoch = {};  // a pass over the loader
  Function before_train_iter = {};
  std::function<void(RunnerCore&, const LogVars& log)> after_train_iter = {};
  Function before_val_epoch = {}, before_test_epoch = {};
  Function after_val_iter = {}, after_test_iter = {};
  std::function<void(RunnerCore&, const NamedValues&metrics)> after_val_epoch = {}, after_test_epoch = {};
  // May change what is written, and what is taken over from what was read (see RunnerCore::resuming()). Before saving
  // rank 0 alone is asked: a hook must not communicate there. What was read may yet be refused: a hook takes over its
  // own part in after_take_over, which is called once all of it fits and the Runner has taken over the rest.
  std::function<void(RunnerCore&, Safetensors&checkpoint)> before_save_checkpoint = {}, after_load_checkpoint = {};
  Function after_take_over = {};
  // Called before a validation or test; what it returns, unless empty, is called after it, also where that has thrown.
  std::function<std::function<void()>(RunnerCore&)> around_evaluation = {};
  Priority priority = Priority::normal;
};

struct RunnerOptions {
  std::variant<EpochBasedTrainLoop, IterBasedTrainLoop> train_cfg = EpochBasedTrainLoop{};
  // Folder for checkpoints and scalars.json, made when there is none; empty: nothing is written. Checkpoints are rank
  // 0's: with FullyShardedDataParallel, layers divided among ranks or a ZeroRedundancyOptimizer training is
  // NotSupported unless `checkpoint` keeps none.
  std::string work_dir = "";
  std::vector<RunnerScheduler> param_schedulers = {};
  LoggerHook logger = {};
  CheckpointHook checkpoint = {};
  std::vector<RunnerHook> hooks = {};
  // Whose ranks run together, each with a Runner; null: that of the model, where it has one.
  Communicator* communicator = nullptr;
  std::map<std::string, std::string> metadata = {};  // further ones for the checkpoints
};

}  // namespace lockstep
