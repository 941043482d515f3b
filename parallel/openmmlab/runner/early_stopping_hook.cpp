#include "lockstep/parallel/openmmlab/runner/early_stopping_hook.h"

#include <cmath>
#include <cstdlib>
#include <optional>

#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/runtime/log.h"

namespace lockstep {

struct EarlyStoppingHook::State {
  EarlyStoppingHookOptions options;
  bool greater;
  double best;
  std::int64_t waited = 0;
  std::string reason = {};
  struct Memory {
    double best;
    std::int64_t waited;
  };
  std::optional<Memory> read = {};  // of a checkpoint that may yet be refused

  bool better(double a, double b) const { return greater ? a > b : a < b; }
  std::string key() const { return cat("early_stopping.", options.monitor); }

  void look(RunnerCore& runner, const NamedValues& metrics) {
    if (!metrics.contains(options.monitor)) {
      std::string names;
      for (const auto& item : metrics) names += cat(names.empty() ? "" : ", ", item.first);
      const std::string text =
          cat("[EarlyStoppingHook] expected a metric out of (", names, "), got '", options.monitor, "'");
      if (options.strict) detail::fail<InvalidArgument>(text);
      return log(LogLevel::warning, text);
    }
    const double score = metrics.at(options.monitor).as_number();
    if (options.check_finite && !std::isfinite(score)) {
      reason = cat(options.monitor, " is ", score);
    } else if (options.stopping_threshold && better(score, *options.stopping_threshold)) {
      best = score;
      reason = cat(options.monitor, " is ", score, ", better than ", *options.stopping_threshold);
    } else if (better(score, greater ? best + options.min_delta : best - options.min_delta)) {
      best = score;
      waited = 0;
    } else if (++waited >= options.patience) {
      reason = cat(options.monitor, " has not improved on ", best, " in ", waited, " validations");
    }
    if (reason.empty()) return;
    if (runner.rank() == 0) log(LogLevel::info, cat("[EarlyStoppingHook] the training ends: ", reason));
    runner.stop_training();
  }
  void load(const RunnerCore& runner, const Safetensors& checkpoint) {
    read.reset();
    if (!runner.resuming()) return;
    const auto found = checkpoint.metadata.find(key());
    if (found == checkpoint.metadata.end()) return;
    char* end = nullptr;
    const double score = std::strtod(found->second.c_str(), &end);
    const long long number = std::strtoll(end, &end, 10);
    LOCKSTEP_CHECK(*end == '\0' && number >= 0, "[EarlyStoppingHook] expected a score and a number as ", key(),
                   ", got '", found->second, "'");
    read = {score, number};
  }
  void take_over() {
    if (read) best = read->best, waited = read->waited;
    read.reset();
  }
};

EarlyStoppingHook::EarlyStoppingHook(EarlyStoppingHookOptions o) {
  LOCKSTEP_CHECK(!o.monitor.empty(), "[EarlyStoppingHook] expected a metric to monitor, got none");
  LOCKSTEP_CHECK(o.min_delta >= 0 && o.patience > 0,
                 "[EarlyStoppingHook] expected a min_delta of at least 0 and a patience above 0, got ", o.min_delta,
                 " and ", o.patience);
  const bool greater = (o.rule ? *o.rule : infer_rule(o.monitor)) == Rule::greater;
  state_ = std::make_shared<State>(
      State{.options = std::move(o), .greater = greater, .best = greater ? -HUGE_VAL : HUGE_VAL});
}

EarlyStoppingHook::operator RunnerHook() const {
  RunnerHook hook;
  const auto state = state_;
  hook.before_train = [state](RunnerCore&) { state->reason.clear(); };
  hook.after_val_epoch = [state](RunnerCore& runner, const NamedValues& metrics) { state->look(runner, metrics); };
  hook.before_save_checkpoint = [state](RunnerCore&, Safetensors& checkpoint) {
    checkpoint.metadata[state->key()] = cat(number_to_string(state->best), ' ', state->waited);
  };
  hook.after_load_checkpoint = [state](RunnerCore& runner, Safetensors& checkpoint) {
    state->load(runner, checkpoint);
  };
  hook.after_take_over = [state](RunnerCore&) { state->take_over(); };
  return hook;
}

const std::string& EarlyStoppingHook::reason() const { return state_->reason; }

}  // namespace lockstep
