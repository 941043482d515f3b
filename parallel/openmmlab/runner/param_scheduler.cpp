#include "lockstep/parallel/openmmlab/runner/param_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/optim/lr_schedule.h"

namespace lockstep {
namespace mmengine {
namespace {

void check_share(const char* name, const char* what, double value, bool zero_too) {
  LOCKSTEP_CHECK((zero_too ? value >= 0 : value > 0) && value <= 1, "[", name, "] expected a ", what,
                 zero_too ? " of 0 to 1, got " : " above 0 and at most 1, got ", value);
}
void check_at_least_0(const char* name, const char* what, double value) {
  LOCKSTEP_CHECK(std::isfinite(value) && value >= 0, "[", name, "] expected a ", what, " of at least 0, got ", value);
}
void check_length(const char* name, const char* what, std::int64_t value) {
  LOCKSTEP_CHECK(value > 0, "[", name, "] expected a ", what, " of at least 1, got ", value);
}
template <Quantity Q>
const char* named(const char* of_lr, const char* of_momentum) {
  return Q == Quantity::lr ? of_lr : of_momentum;
}

}  // namespace

template <Quantity Q>
double Constant<Q>::operator()(const At& at) const {
  if (at.step == 0) return at.now * factor;
  return at.step == at.length - 1 ? at.now / factor : at.now;
}
template <Quantity Q>
void Constant<Q>::check() const {
  check_share(named<Q>("ConstantLR", "ConstantMomentum"), "factor", factor, false);
}

template <Quantity Q>
double Linear<Q>::operator()(const At& at) const {
  if (at.step == 0) return at.now * start_factor;
  const double change = end_factor - start_factor, steps = static_cast<double>(at.length - 1);
  return at.now * (1 + change / (steps * start_factor + static_cast<double>(at.step - 1) * change));
}
template <Quantity Q>
void Linear<Q>::check() const {
  const char* const name = named<Q>("LinearLR", "LinearMomentum");
  check_share(name, "start_factor", start_factor, false);
  check_share(name, "end_factor", end_factor, true);
}

template <Quantity Q>
double Exponential<Q>::operator()(const At& at) const {
  return at.step == 0 ? at.now : at.now * gamma;
}
template <Quantity Q>
void Exponential<Q>::check() const {
  check_at_least_0(named<Q>("ExponentialLR", "ExponentialMomentum"), "gamma", gamma);
}

template <Quantity Q>
double Step<Q>::operator()(const At& at) const {
  return at.step == 0 || at.step % step_size != 0 ? at.now : at.now * gamma;
}
template <Quantity Q>
void Step<Q>::check() const {
  const char* const name = named<Q>("StepLR", "StepMomentum");
  check_length(name, "step_size", step_size);
  check_at_least_0(name, "gamma", gamma);
}

template <Quantity Q>
double MultiStep<Q>::operator()(const At& at) const {
  const auto times = std::count(milestones.begin(), milestones.end(), at.step);
  return times == 0 ? at.now : at.now * std::pow(gamma, static_cast<double>(times));
}
template <Quantity Q>
void MultiStep<Q>::check() const {
  const char* const name = named<Q>("MultiStepLR", "MultiStepMomentum");
  LOCKSTEP_CHECK(!milestones.empty(), "[", name, "] expected milestones, got none");
  for (const std::int64_t milestone : milestones)
    LOCKSTEP_CHECK(milestone >= 0, "[", name, "] expected milestones of at least 0, got ", milestone);
  check_at_least_0(name, "gamma", gamma);
}

template <Quantity Q>
double CosineAnnealing<Q>::operator()(const At& at) const {
  const std::int64_t half = T_max.value_or(at.length);
  const double least = eta_min_ratio ? at.base * *eta_min_ratio : eta_min;
  if (at.step == 0) return at.now;
  const double angle = std::numbers::pi / static_cast<double>(half);
  // At the bottom of the wave the factor of the next step would be 0 / 0.
  if ((at.step - 1 - half) % (2 * half) == 0) return at.now + (at.base - least) * (1 - std::cos(angle)) / 2;
  const double here = 1 + std::cos(angle * static_cast<double>(at.step));
  const double before = 1 + std::cos(angle * static_cast<double>(at.step - 1));
  return here / before * (at.now - least) + least;
}
template <Quantity Q>
void CosineAnnealing<Q>::check() const {
  const char* const name = named<Q>("CosineAnnealingLR", "CosineAnnealingMomentum");
  if (T_max) check_length(name, "T_max", *T_max);
  check_at_least_0(name, "eta_min", eta_min);
  LOCKSTEP_CHECK(!eta_min_ratio || eta_min == 0, "[", name, "] expected eta_min or eta_min_ratio, got both");
  if (eta_min_ratio) check_at_least_0(name, "eta_min_ratio", *eta_min_ratio);
}

template <Quantity Q>
double Poly<Q>::operator()(const At& at) const {
  if (at.step == 0) return at.now;
  const auto left = static_cast<double>(at.length - at.step);  // with the one that is taken now
  return (at.now - eta_min) * std::pow(1 - 1 / left, power) + eta_min;
}
template <Quantity Q>
void Poly<Q>::check() const {
  const char* const name = named<Q>("PolyLR", "PolyMomentum");
  check_at_least_0(name, "power", power);
  check_at_least_0(name, "eta_min", eta_min);
}

template <Quantity Q>
double CosineRestart<Q>::operator()(const At& at) const {
  std::int64_t begin_of_period = 0;
  for (std::size_t i = 0; i < periods.size(); ++i) {
    if (at.step < begin_of_period + periods[i]) {
      const double top = at.base * (restart_weights.size() == 1 ? restart_weights[0] : restart_weights[i]);
      const double least = eta_min_ratio ? at.base * *eta_min_ratio : eta_min;
      const double part = static_cast<double>(at.step - begin_of_period) / static_cast<double>(periods[i]);
      return least + (top - least) * (1 + std::cos(std::numbers::pi * part)) / 2;
    }
    begin_of_period += periods[i];
  }
  return at.now;
}
template <Quantity Q>
void CosineRestart<Q>::check() const {
  const char* const name = named<Q>("CosineRestartLR", "CosineRestartMomentum");
  LOCKSTEP_CHECK(!periods.empty() && (restart_weights.size() == 1 || restart_weights.size() == periods.size()), "[",
                 name, "] expected periods, and a restart weight for all or for each, got ", periods.size(), " and ",
                 restart_weights.size());
  for (const std::int64_t period : periods) check_length(name, "period", period);
  for (const double weight : restart_weights) check_at_least_0(name, "restart weight", weight);
  check_at_least_0(name, "eta_min", eta_min);
  LOCKSTEP_CHECK(!eta_min_ratio || eta_min == 0, "[", name, "] expected eta_min or eta_min_ratio, got both");
  if (eta_min_ratio) check_at_least_0(name, "eta_min_ratio", *eta_min_ratio);
}

double OneCycleLR::operator()(const At& at) const {
  return lockstep::OneCycleLR{.total_steps = total_steps.value_or(at.length),
                              .pct_start = pct_start,
                              .cosine = cosine,
                              .div_factor = div_factor,
                              .final_div_factor = final_div_factor,
                              .three_phase = three_phase}(eta_max, at.step);
}
void OneCycleLR::check() const {
  LOCKSTEP_CHECK(std::isfinite(eta_max) && eta_max > 0, "[OneCycleLR] expected an eta_max above 0, got ", eta_max);
  lockstep::OneCycleLR{.total_steps = total_steps.value_or(1),
                       .pct_start = pct_start,
                       .div_factor = div_factor,
                       .final_div_factor = final_div_factor}
      .check();
}

template struct LOCKSTEP_API Constant<Quantity::lr>;
template struct LOCKSTEP_API Constant<Quantity::momentum>;
template struct LOCKSTEP_API Linear<Quantity::lr>;
template struct LOCKSTEP_API Linear<Quantity::momentum>;
template struct LOCKSTEP_API Exponential<Quantity::lr>;
template struct LOCKSTEP_API Exponential<Quantity::momentum>;
template struct LOCKSTEP_API Step<Quantity::lr>;
template struct LOCKSTEP_API Step<Quantity::momentum>;
template struct LOCKSTEP_API MultiStep<Quantity::lr>;
template struct LOCKSTEP_API MultiStep<Quantity::momentum>;
template struct LOCKSTEP_API CosineAnnealing<Quantity::lr>;
template struct LOCKSTEP_API CosineAnnealing<Quantity::momentum>;
template struct LOCKSTEP_API Poly<Quantity::lr>;
template struct LOCKSTEP_API Poly<Quantity::momentum>;
template struct LOCKSTEP_API CosineRestart<Quantity::lr>;
template struct LOCKSTEP_API CosineRestart<Quantity::momentum>;

}  // namespace mmengine

namespace detail {

RangeScheduler::RangeScheduler(mmengine::Quantity quantity, std::string optimizer, const Range& range)
    : quantity_(quantity), name_(std::move(optimizer)), range_(range) {
  LOCKSTEP_CHECK(range.begin >= 0, "[Runner] expected a scheduler with a begin of at least 0, got ", range.begin);
  LOCKSTEP_CHECK(!range.end || *range.end > range.begin, "[Runner] expected a scheduler with an end above its begin ",
                 range.begin, ", got ", range.end.value_or(0));
  LOCKSTEP_CHECK(range.by_epoch || !range.convert_to_iter_based,
                 "[Runner] expected convert_to_iter_based of a scheduler by epoch, got it of one by iteration");
}

std::vector<Optimizer*> RangeScheduler::targets(OptimWrapper& wrapper, const std::string& name) {
  std::vector<Optimizer*> found;
  std::string names;
  wrapper.for_each_optimizer([&](const std::string& each, Optimizer& optimizer) {
    names += cat(names.empty() ? "" : ", ", each);
    if (name.empty() || name == each) found.push_back(&optimizer);
  });
  LOCKSTEP_CHECK(!found.empty(), "[Runner] expected a scheduler for an optimizer out of (", names, "), got one for '",
                 name, "'");
  return found;
}

double RangeScheduler::get(const Optimizer& optimizer, std::size_t group) const {
  return quantity_ == mmengine::Quantity::lr ? optimizer.lr(group) : optimizer.momentum(group);
}

void RangeScheduler::prepare(OptimWrapper& wrapper, const TrainLength& length) {
  const std::int64_t unit = range_.convert_to_iter_based ? length.iters_per_epoch : 1;
  const std::int64_t whole = range_.by_epoch ? length.max_epochs : length.max_iters;
  begin_ = range_.begin * unit;
  end_ = range_.end.value_or(whole) * unit;
  LOCKSTEP_CHECK(begin_ < end_, "[Runner] expected a scheduler that begins before the end of the training (",
                 range_.by_epoch ? "epoch " : "iteration ", whole, "), got one with begin ", range_.begin);
  rule_ = scaled_(length.iters_per_epoch);
  targets_ = targets(wrapper, name_);
  if (steps_ >= 0) return;
  base_values_.clear();
  for (const Optimizer* optimizer : targets_)
    for (std::size_t group = 0; group < optimizer->group_count(); ++group)
      base_values_.push_back(get(*optimizer, group));
}

void RangeScheduler::begin() {
  if (steps_ < 0) step();
}

void RangeScheduler::step() {
  ++steps_;
  if (steps_ < begin_ || steps_ >= end_) return;
  ++step_;
  std::size_t i = 0;
  for (Optimizer* const optimizer : targets_) {
    for (std::size_t group = 0; group < optimizer->group_count(); ++group, ++i) {
      const double now = get(*optimizer, group);
      if (i == base_values_.size()) base_values_.push_back(now);  // a group that was added meanwhile
      const double value = rule_({now, base_values_[i], step_, end_ - begin_});
      if (quantity_ == mmengine::Quantity::lr)
        optimizer->set_lr(group, value);
      else
        optimizer->set_momentum(group, value);
    }
  }
}

std::vector<NamedTensor> RangeScheduler::state_dict() const {
  return {{"steps", tensor(steps_, {.dtype = DType::i64})},
          {"step", tensor(step_, {.dtype = DType::i64})},
          {"base_values", from_data(base_values_, {static_cast<std::int64_t>(base_values_.size())})}};
}

void RangeScheduler::load_state_dict(const std::vector<NamedTensor>& state) {
  const auto entry = [&](const char* name, DType dtype) -> const Tensor& {
    const auto found = std::find_if(state.begin(), state.end(), [&](const NamedTensor& e) { return e.name == name; });
    LOCKSTEP_CHECK(found != state.end() && found->tensor.defined() && found->tensor.dtype() == dtype,
                   "[Runner] expected the state of a scheduler with ", name, " of ", dtype, ", got ",
                   found == state.end() ? std::string("none") : found->tensor.describe());
    return found->tensor;
  };
  const Tensor &steps = entry("steps", DType::i64), &step = entry("step", DType::i64),
               &base_values = entry("base_values", DType::f64);
  LOCKSTEP_CHECK(steps.count() == 1 && step.count() == 1 && base_values.rank() == 1,
                 "[Runner] expected the state of a scheduler with two numbers and a list, got ", steps, ", ", step,
                 " and ", base_values);
  std::vector<double> values = base_values.to_vector<double>();
  const std::int64_t number = steps.item<std::int64_t>(), in_range = step.item<std::int64_t>();
  LOCKSTEP_CHECK(number >= -1 && in_range >= -1 && in_range <= number,
                 "[Runner] expected the state of a scheduler that has stepped, got steps ", number, " and step ",
                 in_range);
  steps_ = number, step_ = in_range;
  base_values_ = std::move(values);
}

}  // namespace detail
}  // namespace lockstep
