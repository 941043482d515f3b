// EarlyStoppingHook: a training ends when a metric no longer improves. After mmengine's hook.
//
//   .hooks = {EarlyStoppingHook({.monitor = "mIoU", .min_delta = 0.001, .patience = 3})}
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/openmmlab/runner/options.h"

namespace lockstep {

struct EarlyStoppingHookOptions {
  std::string monitor = "";                 // the metric
  std::optional<Rule> rule = std::nullopt;  // what is better; default: see infer_rule
  double min_delta = 0.1;                   // what an improvement is larger than
  bool strict = false;                      // a validation without the metric is an error, not a warning
  bool check_finite = true;                 // a metric that is infinite or NaN ends the training
  std::int64_t patience = 5;                // so many validations in a row without an improvement end it
  std::optional<double> stopping_threshold = std::nullopt;  // a metric that is better than this ends it
};

// Looks at the metrics after each validation. What it remembers goes into checkpoints and comes back with resume().
class LOCKSTEP_API EarlyStoppingHook {
 public:
  // Throws InvalidArgument for options that make no sense.
  explicit EarlyStoppingHook(EarlyStoppingHookOptions options);
  // The hook of one Runner: copies share what they remember.
  operator RunnerHook() const;  // NOLINT: it is one
  // Why the training was ended; empty while it was not.
  const std::string& reason() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
