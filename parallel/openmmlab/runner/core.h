// The part of a Runner that does not depend on the types of model and data: progress, logs, checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"
#include "lockstep/parallel/openmmlab/runner/options.h"

namespace lockstep {

namespace detail {

struct Place;

// A scheduler of the options at work.
class LiveScheduler {
 public:
  explicit LiveScheduler(const RunnerScheduler& scheduler)
      : of_optimizer_(scheduler.scheduler), counts_epochs_(scheduler.by_epoch) {
    if (scheduler.range) of_range_ = *scheduler.range;
  }
  void prepare(OptimWrapper& wrapper, const TrainLength& length) {
    if (of_range_) of_range_->prepare(wrapper, length);
  }
  void begin() {
    if (of_range_) of_range_->begin();
  }
  bool by_epoch() const { return of_range_ ? of_range_->by_epoch() : counts_epochs_; }
  void step() { of_range_ ? of_range_->step() : of_optimizer_->step(); }
  std::vector<NamedTensor> state_dict() const {
    return of_range_ ? of_range_->state_dict() : of_optimizer_->state_dict();
  }
  void load_state_dict(const std::vector<NamedTensor>& state) {
    of_range_ ? of_range_->load_state_dict(state) : of_optimizer_->load_state_dict(state);
  }

 private:
  std::shared_ptr<ParamScheduler> of_optimizer_;
  std::optional<RangeScheduler> of_range_;
  bool counts_epochs_;
};

}  // namespace detail

// Belongs to one thread. Where there are several ranks, each has one and all make the same calls.
class LOCKSTEP_API RunnerCore {
 public:
  // `optim_wrapper` null: a Runner that evaluates. Throws InvalidArgument for options that make no sense.
  RunnerCore(ModuleBase& model, OptimWrapper* optim_wrapper, RunnerOptions options);
  RunnerCore(const RunnerCore&) = delete;
  RunnerCore& operator=(const RunnerCore&) = delete;
  virtual ~RunnerCore();

  std::int64_t iter() const { return iter_; }            // iterations so far
  std::int64_t epoch() const { return epoch_; }          // passes over the loader so far
  std::int64_t max_iters() const { return max_iters_; }  // once train() has begun
  const RunnerOptions& options() const { return options_; }
  OptimWrapper& optim_wrapper();                                // InvalidArgument where there is none
  ModuleBase& module() { return module_; }                      // the model itself, without wrappers
  Communicator* communicator() const { return communicator_; }  // null: there is one rank
  int rank() const { return communicator_ ? communicator_->rank() : 0; }
  // Training ends after this iteration, as if it were the last. All ranks must say so in the same one.
  void stop_training() { stopped_ = true; }

  // Of save_best: what the best validation so far had, and its file in work_dir. Of a metric, or of the first.
  std::optional<double> best_score(std::string_view metric = {}) const;
  std::string best_checkpoint(std::string_view metric = {}) const;

  // ---- checkpoints: one safetensors file each. Collective: every rank calls it, and waits until all is done.
  // Model ("model.…", which load_model takes for inference), optimizer wrapper ("optimizer.…"), schedulers, gradients
  // that wait for the end of a window of accumulation, and as metadata progress, random counters, the buckets of a
  // DistributedDataParallel (bucket_state()) and options().metadata; then what hooks make of it. Rank 0 writes the
  // file; what it throws all ranks throw.
  void save_checkpoint(const std::string& path);
  // Takes over the model's part alone; needs no optimizer. Returns and logs as a warning what did not fit; an
  // InvalidArgument, before anything is changed, with `strict` or where nothing fits. Any file of save_model will do.
  LoadReport load_checkpoint(const std::string& path, bool strict = true);
  // Takes over everything: train() then goes on, bit for bit, as if there had been no break. Throws InvalidArgument,
  // before anything is changed, for a file of no Runner, of another number of ranks, or of another model, optimizer or
  // number of schedulers; and what load_safetensors throws.
  void resume(const std::string& path);
  // From the newest checkpoint in work_dir; false where there is none.
  bool resume();
  // Whether it is resume() that reads, for after_load_checkpoint and after_take_over.
  bool resuming() const { return resuming_; }

 protected:
  // ---- for loops (runner.h), in the order of their use
  void begin_train(std::int64_t iters_per_epoch, bool validates);
  bool train_done() const { return stopped_ || iter_ >= max_iters_; }
  void begin_epoch();
  std::int64_t iter_in_epoch() const { return iter_in_epoch_; }  // batches of this epoch that are trained on
  void before_train_iter();
  // Counts, logs, steps the schedulers. Returns whether a validation is due.
  bool after_train_iter(const LogVars& log, double data_seconds, double seconds);
  void save_best(const NamedValues& metrics);
  void save_where_due();
  void end_train();

  struct Evaluation {
    const char* mode;  // "val", "test"
    std::int64_t batches = 0;
    double data_seconds = 0, seconds = 0;
  };
  // Undoes what hooks have done for an evaluation.
  class LOCKSTEP_API AroundEvaluation {
   public:
    explicit AroundEvaluation(RunnerCore& runner);
    AroundEvaluation(const AroundEvaluation&) = delete;
    AroundEvaluation& operator=(const AroundEvaluation&) = delete;
    ~AroundEvaluation();
    void finish();

   private:
    void undo_all() noexcept;
    std::vector<std::function<void()>> undo_;
  };
  void begin_evaluation(const Evaluation& evaluation, bool all_ranks);
  void after_evaluation_iter(const Evaluation& evaluation);
  // Makes rank 0's metrics those of all ranks, and numbers of them; logs them.
  NamedValues end_evaluation(const Evaluation& evaluation, const NamedValues& metrics);

 private:
  struct Parts;
  bool by_epoch() const { return options_.train_cfg.index() == 0; }
  bool due(std::int64_t interval, bool counts_epochs) const;
  void show(const detail::Place& place, const std::vector<std::pair<std::string, double>>& numbers);
  detail::TrainLength train_length() const;
  // ---- checkpoints.cpp
  struct Best {
    std::string metric;
    double score;
    std::string file;
  };
  // What work_dir has, and each checkpoint says.
  struct Files {
    std::vector<Best> best;
    std::vector<std::string> kept;  // names of checkpoints, the oldest first
    // Names of files that are to go once a newer one is written. Whoever resumes deletes what a killed training had no
    // time to.
    std::vector<std::string> superseded;
  };
  const Best* best(std::string_view metric) const;
  bool checkpoints_count_epochs() const { return options_.checkpoint.by_epoch.value_or(by_epoch()); }
  std::string name_of_now() const;
  std::string path_of(const std::string& name) const;
  void write(const std::string& name, Files with_it, bool is_newest);
  void mark_newest(const std::string& name);
  // Throws NotSupported where rank 0 has parts of parameters or of an optimizer's state alone.
  void check_whole();
  std::map<std::string, std::string> progress(const std::vector<std::string>& random_of_ranks) const;
  void remove_superseded();
  void remove_abandoned() const;
  // ---- resume.cpp
  struct Progress;
  Progress progress_in(const std::string& path, const Safetensors& checkpoint) const;
  template <auto Member, class... Args>
  void call(Args&... args) {
    for (const RunnerHook& hook : options_.hooks)
      if (hook.*Member) (hook.*Member)(*this, args...);
  }

  OptimWrapper* optim_wrapper_;
  ModuleBase& module_;
  RunnerOptions options_;
  Communicator* communicator_;
  std::int64_t iter_ = 0, epoch_ = 0, iter_in_epoch_ = 0, iters_per_epoch_ = 0, max_iters_ = 0;
  bool stopped_ = false, validates_ = false, resuming_ = false;
  std::vector<detail::LiveScheduler> schedulers_;
  Files files_;
  std::optional<std::int64_t> scalars_end_;  // after resume(): scalars.json is to end with this iteration
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep
