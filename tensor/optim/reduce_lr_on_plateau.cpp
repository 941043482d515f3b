#include "lockstep/tensor/optim/reduce_lr_on_plateau.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

void PlateauOptions::check() const {
  LOCKSTEP_CHECK(factor >= 0 && factor < 1, "[ReduceLROnPlateau] expected a factor in [0, 1), got ", factor);
  LOCKSTEP_CHECK(patience >= 0 && cooldown >= 0,
                 "[ReduceLROnPlateau] expected a patience and a cooldown of at least 0 steps, got ", patience, " and ",
                 cooldown);
  LOCKSTEP_CHECK(std::isfinite(threshold) && min_lr >= 0 && std::isfinite(min_lr) && eps >= 0,
                 "[ReduceLROnPlateau] expected a finite threshold, and min_lr and eps of at least 0, got ", threshold,
                 ", ", min_lr, " and ", eps);
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      best_(options.mode == PlateauMode::min ? std::numeric_limits<double>::infinity()
                                             : -std::numeric_limits<double>::infinity()) {
  options.check();
}

bool ReduceLROnPlateau::improves(double metric) const {
  if (options_.mode == PlateauMode::min)
    return metric < (options_.relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  return metric > (options_.relative ? best_ * (1 + options_.threshold) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (improves(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_steps_ = 0;
  }
  if (bad_steps_ <= options_.patience) return;
  for (std::size_t group = 0; group < optimizer_->group_count(); ++group) {
    const double before = optimizer_->lr(group), after = std::max(before * options_.factor, options_.min_lr);
    if (before - after > options_.eps) optimizer_->set_lr(group, after);
  }
  cooldown_ = options_.cooldown;
  bad_steps_ = 0;
}

std::vector<NamedTensor> ReduceLROnPlateau::state_dict() const {
  return {{"best", tensor(best_, {.dtype = DType::f64})},
          {"bad_steps", tensor(bad_steps_, {.dtype = DType::i64})},
          {"cooldown", tensor(cooldown_, {.dtype = DType::i64})}};
}

void ReduceLROnPlateau::load_state_dict(const std::vector<NamedTensor>& state) {
  const auto find = [&](const char* name, DType dtype) {
    Tensor found;
    for (const NamedTensor& entry : state)
      if (entry.name == name) found = entry.tensor;
    LOCKSTEP_CHECK(state.size() == 3 && found.defined() && found.dtype() == dtype && found.count() == 1,
                   "[ReduceLROnPlateau] expected a state of best, bad_steps and cooldown with a ", name, " of ", dtype,
                   "[], got ", state.size(), " entries and ", found);
    return found;
  };
  const auto best = find("best", DType::f64).item<double>();
  const auto bad_steps = find("bad_steps", DType::i64).item<std::int64_t>();
  const auto cooldown = find("cooldown", DType::i64).item<std::int64_t>();
  LOCKSTEP_CHECK(bad_steps >= 0 && cooldown >= 0,
                 "[ReduceLROnPlateau] expected bad_steps and a cooldown of at least 0, got ", bad_steps, " and ",
                 cooldown);
  best_ = best, bad_steps_ = bad_steps, cooldown_ = cooldown;
}

}  // namespace lockstep
