// What a Runner is told: how long to train, when to validate, what to log and to save, and what a program wants to do
// in between. The names are mmengine's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/named_values.h"
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

// A scheduler, stepped by the Runner after every epoch (a pass over the loader), or after every iteration:
//   {LrScheduler(optim.optimizer(), LinearLR{.total_iters = 100}), {.by_epoch = false}}
struct ParamSchedulerOptions {
  bool by_epoch = true;
};
struct RunnerScheduler {
  template <std::derived_from<ParamScheduler> S>
  RunnerScheduler(S of_optimizer, ParamSchedulerOptions options = {})  // NOLINT: a scheduler is enough
      : scheduler(std::make_shared<S>(std::move(of_optimizer))), by_epoch(options.by_epoch) {}

  std::shared_ptr<ParamScheduler> scheduler;
  bool by_epoch;
};

// Every `interval` iterations rank 0 says: learning rate, momentum, and the means over these iterations and all ranks
// of what the steps have logged and of their seconds.
struct LoggerHook {
  std::int64_t interval = 10;
  std::function<void(const std::string& line)> sink = {};  // gets lines to show; the file scalars.json has the numbers
};

enum class Rule : std::uint8_t { greater, less };

struct CheckpointHook {
  std::int64_t interval = 1;                    // below 1: none
  std::optional<bool> by_epoch = std::nullopt;  // the interval counts epochs; default: as the train loop does
  std::int64_t max_keep_ckpts = -1;             // the oldest beyond these are deleted; below 1: none is
  std::string save_best = "";                   // a metric; the checkpoint of its best value is kept as best_…
  Rule rule = Rule::greater;                    // what is better
  bool save_last = true;                        // also where training ends
};

// What a program does in between, on every rank. Unset functions are not called. During and after an iteration (epoch),
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
};

struct RunnerOptions {
  std::variant<EpochBasedTrainLoop, IterBasedTrainLoop> train_cfg = EpochBasedTrainLoop{};
  // Folder for checkpoints and scalars.json, made when there is none; empty: nothing is written.
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
