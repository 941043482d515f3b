// EMAHook: a Runner validates and tests with the average of the parameters that the training has gone through. After
// mmengine's hook.
//
//   Runner runner(model, optim, {.work_dir = "run", .hooks = {EMAHook({.momentum = 1e-3})}});
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/parallel/openmmlab/model/averaged_model.h"
#include "lockstep/parallel/openmmlab/runner/options.h"

namespace lockstep {

struct EMAHookOptions {
  double momentum = 0.0002;  // these five: see AverageOptions
  std::int64_t interval = 1;
  bool update_buffers = false;
  AverageKind kind = AverageKind::exponential;
  std::int64_t gamma = 100;
  std::int64_t begin_iter = 0, begin_epoch = 0;  // until both are reached the averages are the parameters themselves
};

// Updates after every iteration. Around a validation or test the model has the averages, and in a checkpoint it is they
// that are under the model's names: what load_model and load_checkpoint give is the averaged model. The parameters
// themselves are beside them ("ema.…", "ema.steps" in the metadata); resume() gives everything back. A checkpoint of a
// training without averages makes them begin with its parameters, and says so as a warning.
class LOCKSTEP_API EMAHook {
 public:
  // Throws InvalidArgument for options that make no sense.
  explicit EMAHook(const EMAHookOptions& options = {});
  // The hook of one Runner: copies share their averages.
  operator RunnerHook() const;  // NOLINT: it is one
  // By the model's names; empty before there are any.
  std::vector<NamedTensor> averages() const;
  std::int64_t steps() const;  // updates so far

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
