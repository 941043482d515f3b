// Learning rates and momentums that change as training goes on.
//
// A schedule is a function of the value that a group began with and of the epoch, and of nothing else: PyTorch's closed
// forms, with its names and defaults. An epoch is whatever a step() of the scheduler counts: often a pass over the
// data, for a warm-up rather a step of the optimizer.
//
//   AdamW optimizer(net.parameters(), {.lr = 1e-3});
//   LrScheduler scheduler(optimizer, SequentialLR{{LinearLR{.total_iters = 5}, CosineAnnealingLR{.T_max = 95}}, {5}});
//   for (…) { train_one_epoch(…); scheduler.step(); }
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// Any of the schedules below, or a function of one's own: double(double base_lr, std::int64_t epoch).
class LOCKSTEP_API Schedule {
 public:
  // Throws InvalidArgument for settings that make no sense.
  template <class S>
  requires(!std::same_as<S, Schedule> && std::is_invocable_r_v<double, const S&, double, std::int64_t>)
      Schedule(S schedule) {  // NOLINT: any of them is a schedule
    if constexpr (requires { schedule.check(); }) schedule.check();
    rate_ = std::move(schedule);
  }
  double operator()(double base_lr, std::int64_t epoch) const { return rate_(base_lr, epoch); }

 private:
  std::function<double(double, std::int64_t)> rate_;
};

// times gamma every step_size epochs
struct LOCKSTEP_API StepLR {
  std::int64_t step_size = 1;
  double gamma = 0.1;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times gamma at each of the milestones (epochs, ascending; one that is listed twice counts twice)
struct LOCKSTEP_API MultiStepLR {
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times gamma in every epoch
struct LOCKSTEP_API ExponentialLR {
  double gamma = 0.1;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// Half a wave from base_lr down to eta_min at epoch T_max, and up again after it (Loshchilov & Hutter, "SGDR:
// Stochastic Gradient Descent with Warm Restarts", ICLR 2017; without the restarts).
struct LOCKSTEP_API CosineAnnealingLR {
  std::int64_t T_max = 1;  // NOLINT: the name it is known by
  double eta_min = 0;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// The same half wave again and again: the first over T_0 epochs, each of the next T_mult times as long.
struct LOCKSTEP_API CosineAnnealingWarmRestarts {
  std::int64_t T_0 = 1, T_mult = 1;  // NOLINT: the names they are known by
  double eta_min = 0;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times (1 - epoch / total_iters)^power; 0 from epoch total_iters on
struct LOCKSTEP_API PolynomialLR {
  std::int64_t total_iters = 5;
  double power = 1;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// Up to the base_lr and down again, over total_steps: it begins at base_lr / div_factor, is at its largest, which is
// the base_lr, after the share pct_start of the steps, and ends at base_lr / (div_factor * final_div_factor), where it
// stays (Smith & Topin, "Super-Convergence", 2018). With three phases it falls as slowly as it rose, then to its end.
struct LOCKSTEP_API OneCycleLR {
  std::int64_t total_steps = 1;
  double pct_start = 0.3;
  bool cosine = true;  // else in straight lines
  double div_factor = 25, final_div_factor = 1e4;
  bool three_phase = false;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times a factor that goes in a straight line from start_factor to end_factor over total_iters epochs and stays there:
// a warm-up
struct LOCKSTEP_API LinearLR {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times factor before epoch total_iters, and base_lr itself from there on
struct LOCKSTEP_API ConstantLR {
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// times what a function says
struct LOCKSTEP_API LambdaLR {
  std::function<double(std::int64_t epoch)> factor = {};
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// One after the other: schedules[i + 1] begins, at its epoch 0 and with the full base_lr, at epoch milestones[i].
struct LOCKSTEP_API SequentialLR {
  std::vector<Schedule> schedules = {};
  std::vector<std::int64_t> milestones = {};  // ascending, one less than there are schedules
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};
// All at once: what one gives is the base_lr of the next. The factors of those that are factors multiply.
struct LOCKSTEP_API ChainedScheduler {
  std::vector<Schedule> schedules = {};
  double operator()(double base_lr, std::int64_t epoch) const;
  void check() const;
};

// What a scheduler does, whatever it keeps on a schedule.
class LOCKSTEP_API ParamScheduler {
 public:
  // Goes to the next epoch: call it after the optimizer's steps of this one. A group that was added meanwhile joins
  // with the value it has as base value; where each group has a schedule of its own it keeps the value it has.
  void step();
  std::int64_t epoch() const { return epoch_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const char* quantity() const { return quantity_->name; }  // "learning rate", "momentum"
  bool of_momentum() const { return quantity_->get == &Optimizer::momentum; }

  // "epoch" and the base values ("base_lrs", "base_momentums"); the schedules are the program's.
  std::vector<NamedTensor> state_dict() const;
  // Goes to the epoch and the base values of the state, and sets the values. Throws InvalidArgument, before anything is
  // changed, for another state, or one of another number of groups.
  void load_state_dict(const std::vector<NamedTensor>& state);

 protected:
  struct Quantity {
    const char *scheduler, *name, *base_values;  // for messages and states
    double (Optimizer::*get)(std::size_t) const;
    void (Optimizer::*set)(std::size_t, double);
  };
  // `for_all`: one schedule for all groups, else one for each. Both outlive the scheduler.
  ParamScheduler(Optimizer& optimizer, const Quantity& quantity, bool for_all, std::vector<Schedule> schedules);
  const std::vector<double>& base_values() const { return base_values_; }

 private:
  void apply(std::int64_t epoch, std::vector<double> base_values);

  Optimizer* optimizer_;
  const Quantity* quantity_;
  bool for_all_;
  std::vector<Schedule> schedules_;
  std::vector<double> base_values_;
  std::int64_t epoch_ = 0;
};

// Keeps the learning rates of an optimizer on a schedule. The optimizer must outlive it and stay where it is.
class LOCKSTEP_API LrScheduler : public ParamScheduler {
 public:
  // For all groups, or one for each. The rates that the optimizer has now are the base rates; sets those of epoch 0.
  // Throws InvalidArgument for a number of schedules that is not that of the groups.
  LrScheduler(Optimizer& optimizer, const Schedule& schedule) : ParamScheduler(optimizer, kRate, true, {schedule}) {}
  LrScheduler(Optimizer& optimizer, std::vector<Schedule> schedules)
      : ParamScheduler(optimizer, kRate, false, std::move(schedules)) {}
  const std::vector<double>& base_lrs() const { return base_values(); }

 private:
  static const Quantity kRate;
};

// The same for momentums: SGD's, or beta1 of the Adam family. Throws NotSupported for an optimizer without.
class LOCKSTEP_API MomentumScheduler : public ParamScheduler {
 public:
  MomentumScheduler(Optimizer& optimizer, const Schedule& schedule)
      : ParamScheduler(optimizer, kMomentum, true, {schedule}) {}
  MomentumScheduler(Optimizer& optimizer, std::vector<Schedule> schedules)
      : ParamScheduler(optimizer, kMomentum, false, std::move(schedules)) {}
  const std::vector<double>& base_momentums() const { return base_values(); }

 private:
  static const Quantity kMomentum;
};

// The schedules by the names they have for momentums (mmengine's).
using ConstantMomentum = ConstantLR;
using LinearMomentum = LinearLR;
using StepMomentum = StepLR;
using MultiStepMomentum = MultiStepLR;
using ExponentialMomentum = ExponentialLR;
using CosineAnnealingMomentum = CosineAnnealingLR;

}  // namespace lockstep
