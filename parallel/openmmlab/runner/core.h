// The part of a Runner that does not depend on the types of model and data: progress, logs, checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/optim_wrapper.h"
#include "lockstep/parallel/openmmlab/runner/options.h"

namespace lockstep {

namespace detail {
struct Place;
}

// Belongs to one thread. Where there are several ranks, each has one and all make the same calls.
class LOCKSTEP_API RunnerCore {
 public:
  // Throws InvalidArgument for options that make no sense.
  RunnerCore(ModuleBase& model, OptimWrapper& optim_wrapper, RunnerOptions options);
  RunnerCore(const RunnerCore&) = delete;
  RunnerCore& operator=(const RunnerCore&) = delete;
  virtual ~RunnerCore();

  std::int64_t iter() const { return iter_; }            // iterations so far
  std::int64_t epoch() const { return epoch_; }          // passes over the loader so far
  std::int64_t max_iters() const { return max_iters_; }  // once train() has begun
  const RunnerOptions& options() const { return options_; }
  OptimWrapper& optim_wrapper() { return optim_wrapper_; }
  ModuleBase& module() { return module_; }                      // the model itself, without wrappers
  Communicator* communicator() const { return communicator_; }  // null: there is one rank
  int rank() const { return communicator_ ? communicator_->rank() : 0; }
  // Training ends after this iteration, as if it were the last. All ranks must say so in the same one.
  void stop_training() { stopped_ = true; }

  // Of save_best: what the best validation so far had, and its file in work_dir.
  std::optional<double> best_score() const { return best_score_; }
  const std::string& best_checkpoint() const { return best_checkpoint_; }

  // ---- checkpoints: one safetensors file each. Collective: every rank calls it, and waits until all is done.
  // Model ("model.…"), optimizer wrapper ("optimizer.…"), schedulers, gradients that wait for the end of a window of
  // accumulation, and as metadata progress, random counters and options().metadata. Rank 0 writes the file; what it
  // throws all ranks throw.
  void save_checkpoint(const std::string& path);
  // Takes over the model's part alone.
  void load_checkpoint(const std::string& path);
  // Takes over everything: train() then goes on, bit for bit, as if there had been no break. Throws InvalidArgument,
  // before anything is changed, for a file of no Runner, of another number of ranks, or of another model, optimizer or
  // number of schedulers; and what load_safetensors throws.
  void resume(const std::string& path);
  // From the newest checkpoint in work_dir; false where there is none.
  bool resume();

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
  void begin_evaluation(const Evaluation& evaluation, bool all_ranks);
  void after_evaluation_iter(const Evaluation& evaluation);
  // Makes rank 0's metrics those of all ranks, and numbers of them; logs them.
  NamedValues end_evaluation(const Evaluation& evaluation, const NamedValues& metrics);

 private:
  struct Parts;
  bool by_epoch() const { return options_.train_cfg.index() == 0; }
  bool due(std::int64_t interval, bool counts_epochs) const;
  void show(const detail::Place& place, const std::vector<std::pair<std::string, double>>& numbers) const;
  // ---- checkpoints.cpp
  bool checkpoints_count_epochs() const { return options_.checkpoint.by_epoch.value_or(by_epoch()); }
  std::string name_of_now() const;
  std::string path_of(const std::string& name) const;
  void write(const std::string& path);
  std::map<std::string, std::string> progress(const std::vector<std::string>& random_of_ranks) const;
  void remove_file(const std::string& name) const;
  template <auto Member, class... Args>
  void call(const Args&... args);

  OptimWrapper& optim_wrapper_;
  ModuleBase& module_;
  RunnerOptions options_;
  Communicator* communicator_;
  std::int64_t iter_ = 0, epoch_ = 0, iter_in_epoch_ = 0, iters_per_epoch_ = 0, max_iters_ = 0;
  bool stopped_ = false, validates_ = false;
  std::optional<double> best_score_;
  std::string best_checkpoint_;
  std::vector<std::string> kept_;  // names of checkpoints in work_dir, the oldest first
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep
