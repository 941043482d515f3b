// The parameter schedulers of mmengine: several act on the same learning rates (momentums), each in its own range of
// steps and each on what the ones before it have left.
//
// Of the first 500 iterations, of the epochs 1 to 11 (from 0), and of the momentum:
//
//   .param_schedulers = {
//       mmengine::LinearLR{.start_factor = 0.001, .by_epoch = false, .end = 500},
//       mmengine::CosineAnnealingLR{.eta_min = 1e-5, .begin = 1, .end = 12, .convert_to_iter_based = true},
//       mmengine::LinearMomentum{.start_factor = 0.5, .by_epoch = false, .end = 500}}
//
// The fields that all have:
//   by_epoch   steps are passes over the loader, else iterations
//   begin, end acts while begin <= step < end; without an end, to the end of the training
//   convert_to_iter_based   begin, end and all lengths are given in epochs, but every iteration is a step
//
// A step changes the value that a group has, by mmengine's recurrences: so factors of schedulers whose ranges overlap
// multiply, and one that begins later goes on from where the one before it ended. `step` below counts from `begin`, and
// `length` is end - begin. A range of `length` steps ends at what it goes to: mmengine's total_iters is length - 1.
// Schedulers outside of a Runner, and PyTorch's closed forms: tensor/optim/lr_schedule.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"

namespace lockstep {
namespace mmengine {

enum class Quantity : std::uint8_t { lr, momentum };
// A group's value now, its value before any scheduler, and where the scheduler is.
struct At {
  double now, base;
  std::int64_t step, length;
};

// times `factor` before the last step, at which that is taken back
template <Quantity Q>
struct LOCKSTEP_API Constant {
  double factor = 1.0 / 3;  // above 0, at most 1
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
};
// times a factor that goes in a straight line from start_factor to end_factor: a warm-up
template <Quantity Q>
struct LOCKSTEP_API Linear {
  double start_factor = 1.0 / 3, end_factor = 1;  // above 0 (at least 0), at most 1
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
};
// times gamma in every step
template <Quantity Q>
struct LOCKSTEP_API Exponential {
  double gamma = 0.1;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
};
// times gamma in every step_size-th step
template <Quantity Q>
struct LOCKSTEP_API Step {
  std::int64_t step_size = 1;
  double gamma = 0.1;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
  void scale(std::int64_t iters_per_epoch) { step_size *= iters_per_epoch; }
};
// times gamma at each of the milestones (steps from `begin` on; one that is listed twice counts twice)
template <Quantity Q>
struct LOCKSTEP_API MultiStep {
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
  void scale(std::int64_t iters_per_epoch) {
    for (std::int64_t& milestone : milestones) milestone *= iters_per_epoch;
  }
};
// Half a wave down to eta_min, or to eta_min_ratio times the base value, at step T_max: of the base value where nothing
// else has changed it.
template <Quantity Q>
struct LOCKSTEP_API CosineAnnealing {
  std::optional<std::int64_t> T_max = std::nullopt;  // NOLINT: the name it is known by; default: the length
  double eta_min = 0;
  std::optional<double> eta_min_ratio = std::nullopt;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
  void scale(std::int64_t iters_per_epoch) {
    if (T_max) *T_max *= iters_per_epoch;
  }
};
// Down to eta_min at the last step, with the share of the steps that are left to the power `power`.
template <Quantity Q>
struct LOCKSTEP_API Poly {
  double power = 1, eta_min = 0;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
};
// One half wave after another: the i-th over periods[i] steps, from restart_weights[i] times the base value. Sets the
// value, whatever it was.
template <Quantity Q>
struct LOCKSTEP_API CosineRestart {
  std::vector<std::int64_t> periods = {};
  std::vector<double> restart_weights = {1};  // as many as periods, or one for all
  double eta_min = 0;
  std::optional<double> eta_min_ratio = std::nullopt;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
  void scale(std::int64_t iters_per_epoch) {
    for (std::int64_t& period : periods) period *= iters_per_epoch;
  }
};
// Up to eta_max and down again: see OneCycleLR in tensor/optim/lr_schedule.h. Sets the value, whatever it was.
struct LOCKSTEP_API OneCycleLR {
  double eta_max = 0;                                      // above 0
  std::optional<std::int64_t> total_steps = std::nullopt;  // default: the length
  double pct_start = 0.3;
  bool cosine = true;  // anneal_strategy "cos", else "linear"
  double div_factor = 25, final_div_factor = 1e4;
  bool three_phase = false;
  bool by_epoch = true;
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool convert_to_iter_based = false;
  double operator()(const At& at) const;
  void check() const;
  void scale(std::int64_t iters_per_epoch) {
    if (total_steps) *total_steps *= iters_per_epoch;
  }
};

using ConstantLR = Constant<Quantity::lr>;
using LinearLR = Linear<Quantity::lr>;
using ExponentialLR = Exponential<Quantity::lr>;
using StepLR = Step<Quantity::lr>;
using MultiStepLR = MultiStep<Quantity::lr>;
using CosineAnnealingLR = CosineAnnealing<Quantity::lr>;
using PolyLR = Poly<Quantity::lr>;
using CosineRestartLR = CosineRestart<Quantity::lr>;
using ConstantMomentum = Constant<Quantity::momentum>;
using LinearMomentum = Linear<Quantity::momentum>;
using ExponentialMomentum = Exponential<Quantity::momentum>;
using StepMomentum = Step<Quantity::momentum>;
using MultiStepMomentum = MultiStep<Quantity::momentum>;
using CosineAnnealingMomentum = CosineAnnealing<Quantity::momentum>;
using PolyMomentum = Poly<Quantity::momentum>;
using CosineRestartMomentum = CosineRestart<Quantity::momentum>;

}  // namespace mmengine

namespace detail {

template <template <mmengine::Quantity> class S, mmengine::Quantity Q>
constexpr mmengine::Quantity quantity_of(const S<Q>* /*scheduler*/) {
  return Q;
}
constexpr mmengine::Quantity quantity_of(const mmengine::OneCycleLR* /*scheduler*/) { return mmengine::Quantity::lr; }

template <class S>
concept SchedulerOfRange = requires(const S& s, const mmengine::At& at) {
  s.convert_to_iter_based;
  { s(at) } -> std::same_as<double>;
};

// How long a training is.
struct TrainLength {
  std::int64_t iters_per_epoch, max_epochs, max_iters;
};

// A scheduler at work. A Runner has its own of each.
class LOCKSTEP_API RangeScheduler {
 public:
  template <SchedulerOfRange S>
  RangeScheduler(const S& scheduler, std::string optimizer)
      : RangeScheduler(quantity_of(&scheduler), std::move(optimizer),
                       {.by_epoch = scheduler.by_epoch,
                        .begin = scheduler.begin,
                        .end = scheduler.end,
                        .convert_to_iter_based = scheduler.convert_to_iter_based}) {
    scheduler.check();
    scaled_ = [scheduler](std::int64_t iters_per_epoch) {
      S scaled = scheduler;
      if constexpr (requires { scaled.scale(iters_per_epoch); })  // else its numbers count no epochs
        if (scheduler.convert_to_iter_based) scaled.scale(iters_per_epoch);
      return std::function<double(const mmengine::At&)>(std::move(scaled));
    };
  }

  mmengine::Quantity quantity() const { return quantity_; }
  // Finds its range and, unless a state was loaded, the values of all groups. Throws InvalidArgument for an optimizer
  // or a range that is none.
  void prepare(OptimWrapper& wrapper, const TrainLength& length);
  // Steps for the first time, unless it has.
  void begin();
  bool by_epoch() const { return range_.by_epoch && !range_.convert_to_iter_based; }
  void step();

  std::vector<NamedTensor> state_dict() const;
  void load_state_dict(const std::vector<NamedTensor>& state);
  // The optimizers that it changes.
  static std::vector<Optimizer*> targets(OptimWrapper& wrapper, const std::string& name);
  const std::string& optimizer() const { return name_; }

 private:
  struct Range {
    bool by_epoch;
    std::int64_t begin;
    std::optional<std::int64_t> end;
    bool convert_to_iter_based;
  };
  RangeScheduler(mmengine::Quantity quantity, std::string optimizer, const Range& range);
  double get(const Optimizer& optimizer, std::size_t group) const;

  mmengine::Quantity quantity_;
  std::string name_;
  Range range_;
  std::function<std::function<double(const mmengine::At&)>(std::int64_t)> scaled_;
  std::function<double(const mmengine::At&)> rule_;
  std::vector<Optimizer*> targets_;
  std::int64_t begin_ = 0, end_ = 0;
  std::int64_t steps_ = -1, step_ = -1;  // of the training, of the range
  std::vector<double> base_values_;      // of all groups of all targets
};

}  // namespace detail
}  // namespace lockstep
