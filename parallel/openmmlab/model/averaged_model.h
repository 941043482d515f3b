// Models whose parameters are averages of those that a training goes through, and which often predict better. After
// mmengine's ExponentialMovingAverage, MomentumAnnealingEMA and StochasticWeightAverage. In a Runner: EMAHook.
//
//   AveragedModel ema(net, {.momentum = 1e-3});
//   for (…) { train_one_step(net); ema.update_parameters(net); }
//   const Tensor scores = ema(x);
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// exponential: average + momentum * (parameter - average). annealing: the same with a momentum of at least gamma /
// (gamma + updates), which falls to it. stochastic: the mean of all (Izmailov et al., "Averaging Weights Leads to Wider
// Optima and Better Generalization", UAI 2018).
enum class AverageKind : std::uint8_t { exponential, annealing, stochastic };

struct LOCKSTEP_API AverageOptions {
  // The share of the new parameters (1 minus what others call decay), above 0 and below 1.
  double momentum = 0.0002;
  std::int64_t interval = 1;    // every so many updates; the others change nothing
  bool update_buffers = false;  // average those of floats too; else they are copies of the model's
  AverageKind kind = AverageKind::exponential;
  std::int64_t gamma = 100;

  // Throws InvalidArgument for what makes no sense.
  void check() const;
  // What the average and the parameter become at an update before which there were `updates`: the first is a copy.
  Tensor next(const Tensor& average, const Tensor& parameter, std::int64_t updates) const;
};

namespace detail {
LOCKSTEP_API void update_average(const ModuleBase& average, const ModuleBase& source, const AverageOptions& options,
                                 std::int64_t updates);
}

template <IsModule M>
class AveragedModel : public Module<AveragedModel<M>> {
 public:
  // A deep copy of the model, without gradients. Throws InvalidArgument for options that make no sense.
  explicit AveragedModel(const M& model, const AverageOptions& options = {})
      : module_(deep_copy(model)), options_((options.check(), options)) {
    module_.set_requires_grad(false);
  }

  // `model` is one like that of the constructor, on any device. Throws InvalidArgument for another.
  void update_parameters(const ModuleBase& model) {
    const ModuleBase* source = &model;
    while (const ModuleBase* inner = source->wrapped_module()) source = inner;
    const ModuleBase* target = &module_;
    while (const ModuleBase* inner = target->wrapped_module()) target = inner;
    detail::update_average(*target, *source, options_, steps_);
    ++steps_;
  }
  std::int64_t steps() const { return steps_; }  // updates so far
  const AverageOptions& options() const { return options_; }
  const M& module() const { return module_; }

  template <class... Args>
  auto forward(Args&&... args) const {
    return std::as_const(module_)(std::forward<Args>(args)...);
  }
  void members(Members& m) override { m("module", module_); }
  const ModuleBase* wrapped_module() const override { return &module_; }

 private:
  M module_;
  AverageOptions options_;
  std::int64_t steps_ = 0;
};

// Under mmengine's name.
template <IsModule M>
using ExponentialMovingAverage = AveragedModel<M>;

}  // namespace lockstep
