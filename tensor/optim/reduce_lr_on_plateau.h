// A learning rate that falls when a metric no longer improves: not a function of the epoch, so no schedule.
//
//   ReduceLROnPlateau scheduler(optimizer, {.patience = 5});
//   for (…) { train_one_epoch(…); scheduler.step(validation_loss); }
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

enum class PlateauMode : std::uint8_t { min, max };  // which metric is the better one: the smaller or the larger

// PyTorch's names and defaults.
struct LOCKSTEP_API PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;         // of the rates, when they fall; below 1
  std::int64_t patience = 10;  // that many steps in a row may bring no improvement; the next one lets the rates fall
  double threshold = 1e-4;     // an improvement is larger than this,
  bool relative = true;        // as a share of the best metric so far, or as it is
  std::int64_t cooldown = 0;   // steps after a fall that do not count
  double min_lr = 0;
  double eps = 1e-8;  // a fall by no more than this does not happen

  void check() const;  // throws InvalidArgument for what makes no sense
};

// The optimizer must outlive it and stay where it is.
class LOCKSTEP_API ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, const PlateauOptions& options = {});

  // Looks at the metric of an epoch, and lowers the rates of all groups when it is time. NaN is no improvement.
  void step(double metric);
  double best() const { return best_; }  // infinity, of the worse sign, before the first improvement
  std::int64_t bad_steps() const { return bad_steps_; }

  // "best", "bad_steps" and "cooldown"; the rates are part of the optimizer's state.
  std::vector<NamedTensor> state_dict() const;
  // Throws InvalidArgument, before anything is changed, for another state.
  void load_state_dict(const std::vector<NamedTensor>& state);

 private:
  bool improves(double metric) const;

  Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  std::int64_t bad_steps_ = 0, cooldown_ = 0;
};

}  // namespace lockstep
