#include "lockstep/tensor/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/runtime/check_function.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {
namespace {

void check_milestones(const char* name, const std::vector<std::int64_t>& milestones) {
  std::string list;
  for (const std::int64_t milestone : milestones) list += cat(list.empty() ? "" : ", ", milestone);
  LOCKSTEP_CHECK(std::is_sorted(milestones.begin(), milestones.end()) && (milestones.empty() || milestones[0] >= 0),
                 "[", name, "] expected ascending milestones of at least 0, got ", list);
}
void check_factor(const char* name, const char* what, double factor) {
  LOCKSTEP_CHECK(std::isfinite(factor) && factor >= 0, "[", name, "] expected a ", what, " of at least 0, got ",
                 factor);
}

}  // namespace

double StepLR::operator()(double base_lr, std::int64_t epoch) const {
  const std::int64_t steps = epoch / step_size;  // that are over
  return base_lr * std::pow(gamma, static_cast<double>(steps));
}
void StepLR::check() const {
  LOCKSTEP_CHECK(step_size > 0, "[StepLR] expected a step size of at least 1 epoch, got ", step_size);
  check_factor("StepLR", "gamma", gamma);
}

double MultiStepLR::operator()(double base_lr, std::int64_t epoch) const {
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), epoch) - milestones.begin();
  return base_lr * std::pow(gamma, static_cast<double>(passed));
}
void MultiStepLR::check() const {
  check_milestones("MultiStepLR", milestones);
  check_factor("MultiStepLR", "gamma", gamma);
}

double ExponentialLR::operator()(double base_lr, std::int64_t epoch) const {
  return base_lr * std::pow(gamma, static_cast<double>(epoch));
}
void ExponentialLR::check() const { check_factor("ExponentialLR", "gamma", gamma); }

double CosineAnnealingLR::operator()(double base_lr, std::int64_t epoch) const {
  // The wave has a period of 2 T_max: reduced first, so that its lowest point is eta_min however late it comes (the
  // cosine of the nearest number to pi is -1).
  const std::int64_t place = epoch % (2 * T_max);
  const double angle = std::numbers::pi * static_cast<double>(place) / static_cast<double>(T_max);
  return eta_min + (base_lr - eta_min) * (1 + std::cos(angle)) / 2;
}
void CosineAnnealingLR::check() const {
  LOCKSTEP_CHECK(T_max > 0, "[CosineAnnealingLR] expected a T_max of at least 1 epoch, got ", T_max);
  check_factor("CosineAnnealingLR", "eta_min", eta_min);
}

double CosineAnnealingWarmRestarts::operator()(double base_lr, std::int64_t epoch) const {
  std::int64_t length = T_0, place = epoch;
  if (T_mult == 1)
    place %= T_0;
  else
    for (; place >= length; length *= T_mult) place -= length;
  return CosineAnnealingLR{.T_max = length, .eta_min = eta_min}(base_lr, place);
}
void CosineAnnealingWarmRestarts::check() const {
  LOCKSTEP_CHECK(T_0 > 0 && T_mult > 0, "[CosineAnnealingWarmRestarts] expected T_0 and T_mult of at least 1, got ",
                 T_0, " and ", T_mult);
  check_factor("CosineAnnealingWarmRestarts", "eta_min", eta_min);
}

double PolynomialLR::operator()(double base_lr, std::int64_t epoch) const {
  const double left = 1 - static_cast<double>(std::min(epoch, total_iters)) / static_cast<double>(total_iters);
  return base_lr * std::pow(left, power);
}
void PolynomialLR::check() const {
  LOCKSTEP_CHECK(total_iters > 0, "[PolynomialLR] expected at least 1 epoch for total_iters, got ", total_iters);
  check_factor("PolynomialLR", "power", power);
}

double OneCycleLR::operator()(double base_lr, std::int64_t epoch) const {
  const auto steps = static_cast<double>(total_steps), at = static_cast<double>(epoch);
  const double begin = base_lr / div_factor, end = begin / final_div_factor, top = pct_start * steps - 1;
  const auto between = [&](double from, double to, double first, double last) {
    const double part = last > first ? std::clamp((at - first) / (last - first), 0.0, 1.0) : 1;
    return cosine ? to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part)) : from + (to - from) * part;
  };
  if (at <= top) return between(begin, base_lr, 0, top);
  if (!three_phase) return between(base_lr, end, top, steps - 1);
  const double down = 2 * pct_start * steps - 2;
  return at <= down ? between(base_lr, begin, top, down) : between(begin, end, down, steps - 1);
}
void OneCycleLR::check() const {
  LOCKSTEP_CHECK(total_steps > 0 && pct_start >= 0 && pct_start <= 1 && div_factor > 0 && final_div_factor > 0,
                 "[OneCycleLR] expected at least 1 step, a pct_start in [0, 1] and divisors above 0, got ", total_steps,
                 ", ", pct_start, ", ", div_factor, " and ", final_div_factor);
}

double LinearLR::operator()(double base_lr, std::int64_t epoch) const {
  const double passed = static_cast<double>(std::min(epoch, total_iters)) / static_cast<double>(total_iters);
  return base_lr * (start_factor + (end_factor - start_factor) * passed);
}
void LinearLR::check() const {
  LOCKSTEP_CHECK(total_iters > 0, "[LinearLR] expected at least 1 epoch for total_iters, got ", total_iters);
  check_factor("LinearLR", "start_factor", start_factor);
  check_factor("LinearLR", "end_factor", end_factor);
}

double ConstantLR::operator()(double base_lr, std::int64_t epoch) const {
  return epoch < total_iters ? base_lr * factor : base_lr;
}
void ConstantLR::check() const {
  LOCKSTEP_CHECK(total_iters >= 0, "[ConstantLR] expected a total_iters of at least 0 epochs, got ", total_iters);
  check_factor("ConstantLR", "factor", factor);
}

double LambdaLR::operator()(double base_lr, std::int64_t epoch) const { return base_lr * factor(epoch); }
void LambdaLR::check() const { detail::check_function("LambdaLR", factor); }

double SequentialLR::operator()(double base_lr, std::int64_t epoch) const {
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), epoch) - milestones.begin();
  const std::int64_t begin = passed == 0 ? 0 : milestones[static_cast<std::size_t>(passed) - 1];
  return schedules[static_cast<std::size_t>(passed)](base_lr, epoch - begin);
}
void SequentialLR::check() const {
  LOCKSTEP_CHECK(!schedules.empty() && milestones.size() + 1 == schedules.size(),
                 "[SequentialLR] expected one milestone less than schedules, got ", milestones.size(), " and ",
                 schedules.size());
  check_milestones("SequentialLR", milestones);
}

double ChainedScheduler::operator()(double base_lr, std::int64_t epoch) const {
  for (const Schedule& schedule : schedules) base_lr = schedule(base_lr, epoch);
  return base_lr;
}
void ChainedScheduler::check() const {
  LOCKSTEP_CHECK(!schedules.empty(), "[ChainedScheduler] expected at least one schedule, got an empty list");
}

// ---- schedulers

const ParamScheduler::Quantity LrScheduler::kRate{"LrScheduler", "learning rate", "base_lrs", &Optimizer::lr,
                                                  &Optimizer::set_lr};
const ParamScheduler::Quantity MomentumScheduler::kMomentum{"MomentumScheduler", "momentum", "base_momentums",
                                                            &Optimizer::momentum, &Optimizer::set_momentum};

ParamScheduler::ParamScheduler(Optimizer& optimizer, const Quantity& quantity, bool for_all,
                               std::vector<Schedule> schedules)
    : optimizer_(&optimizer), quantity_(&quantity), for_all_(for_all), schedules_(std::move(schedules)) {
  LOCKSTEP_CHECK(for_all || schedules_.size() == optimizer.group_count(), "[", quantity.scheduler,
                 "] expected a schedule for each of ", optimizer.group_count(), " groups, got ", schedules_.size());
  std::vector<double> base_values;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group)
    base_values.push_back((optimizer.*quantity.get)(group));
  apply(0, std::move(base_values));
}

void ParamScheduler::apply(std::int64_t epoch, std::vector<double> base_values) {
  const std::size_t count = for_all_ ? base_values.size() : schedules_.size();
  std::vector<double> values;
  for (std::size_t group = 0; group < count; ++group) {
    const double value = schedules_[for_all_ ? 0 : group](base_values[group], epoch);
    // Before any group is changed.
    LOCKSTEP_CHECK(std::isfinite(value) && value >= 0, "[", quantity_->scheduler, "] expected a ", quantity_->name,
                   " of at least 0, got ", value, " for group ", group, " in epoch ", epoch);
    values.push_back(value);
  }
  std::size_t done = 0;
  std::vector<double> before;
  try {
    for (; done < count; ++done) {
      before.push_back((optimizer_->*quantity_->get)(done));
      (optimizer_->*quantity_->set)(done, values[done]);
    }
  } catch (...) {  // a beta1 of 1
    while (done > 0) --done, (optimizer_->*quantity_->set)(done, before[done]);
    throw;
  }
  base_values_ = std::move(base_values);
  epoch_ = epoch;
}

void ParamScheduler::step() {
  std::vector<double> base_values = base_values_;
  for (std::size_t group = base_values.size(); group < optimizer_->group_count(); ++group)
    base_values.push_back((optimizer_->*quantity_->get)(group));
  apply(epoch_ + 1, std::move(base_values));
}

std::vector<NamedTensor> ParamScheduler::state_dict() const {
  return {{"epoch", tensor(epoch_, {.dtype = DType::i64})},
          {quantity_->base_values, from_data(base_values_, {static_cast<std::int64_t>(base_values_.size())})}};
}

void ParamScheduler::load_state_dict(const std::vector<NamedTensor>& state) {
  const auto& [scheduler, name, base_name, get, set] = *quantity_;
  Tensor epoch, base_values;
  for (const NamedTensor& entry : state) {
    LOCKSTEP_CHECK(entry.name == "epoch" || entry.name == base_name, "[", scheduler, "] expected a state of epoch and ",
                   base_name, ", got '", entry.name, "'");
    (entry.name == "epoch" ? epoch : base_values) = entry.tensor;
  }
  LOCKSTEP_CHECK(epoch.defined() && epoch.dtype() == DType::i64 && epoch.count() == 1, "[", scheduler,
                 "] expected an epoch of i64, got ", epoch);
  const auto groups = static_cast<std::int64_t>(optimizer_->group_count());
  LOCKSTEP_CHECK(base_values.defined() && base_values.dtype() == DType::f64 && base_values.shape() == Shape{groups},
                 "[", scheduler, "] expected ", base_name, " of f64[", groups, "], got ", base_values);
  const std::int64_t number = epoch.item<std::int64_t>();
  LOCKSTEP_CHECK(number >= 0, "[", scheduler, "] expected an epoch of at least 0, got ", number);
  apply(number, base_values.to_vector<double>());
}

}  // namespace lockstep
