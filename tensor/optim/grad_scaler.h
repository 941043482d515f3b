// Loss scaling: small gradients survive 16-bit arithmetic when the loss they come from is multiplied by a large number
// (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);           // only where the gradients are to be looked at, such as to clip them
//   clip_grad_norm(net.parameters(), 1);
//   scaler.step(optimizer);               // not at all when a gradient is infinite or NaN
//   scaler.update();                      // once per iteration, after the last step
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// PyTorch's names and defaults.
struct GradScalerOptions {
  double init_scale = 65536;            // 2^16
  double growth_factor = 2;             // of the scale, after growth_interval iterations without infinity or NaN
  double backoff_factor = 0.5;          // of the scale, after an iteration with one
  std::int64_t growth_interval = 2000;  // iterations
  bool dynamic = true;                  // false: the scale stays; steps are skipped all the same
  bool enabled = true;                  // false: nothing is scaled and nothing skipped
  // Asked once per optimizer and iteration, where the host waits for its gradients: from whether they are infinite or
  // NaN here to whether the step is skipped. Lets ranks decide alike; see overflow_on_any_rank. Empty: as found here.
  std::function<bool(bool found)> share_overflow = {};
};

// Works with any number of optimizers, whose parameters may be on several devices. Used by one thread at a time.
class LOCKSTEP_API GradScaler {
 public:
  // Throws InvalidArgument for options that make no sense.
  explicit GradScaler(const GradScalerOptions& options = {});

  // loss * scale. A loss in f16 overflows at a scale of 65536: make it f32 first.
  Tensor scale(const Tensor& loss) const;

  // Divides the gradients of the optimizer's parameters by the scale, in place, and notes whether one is infinite or
  // NaN: one kernel call per device, without blocking. Throws Error when that was done since the last update().
  void unscale_(Optimizer& optimizer);
  // Unscales unless that was done, then steps, unless a gradient on any device is infinite or NaN: then nothing is
  // changed. True when it stepped. Blocks the host until the gradients are known. Throws Error for a second step since
  // the last update().
  bool step(Optimizer& optimizer);
  // Ends an iteration: shrinks the scale when any optimizer met infinity or NaN, grows it when its time has come (the
  // scale stays within f32). Blocks where unscale_() was not followed by a step(). Throws Error when no optimizer was
  // unscaled or stepped since the last one.
  void update();

  double scale() const { return options_.enabled ? scale_ : 1; }
  // Throws InvalidArgument unless finite and above 0, Error between unscale_() and update().
  void set_scale(double scale);
  // Iterations without infinity or NaN since the scale has changed.
  std::int64_t growth_tracker() const { return growth_tracker_; }
  const GradScalerOptions& options() const { return options_; }

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker"; for save_safetensors.
  std::vector<NamedTensor> state_dict() const;
  // Throws InvalidArgument, before anything is changed, for names, dtypes and values that do not fit; Error between
  // unscale_() and update().
  void load_state_dict(const std::vector<NamedTensor>& state);

 private:
  struct Progress {
    std::vector<Tensor> found;  // one per device: 1 where infinity or NaN was found
    bool known = false;         // whether `bad` is
    bool bad = false;
    bool stepped = false;
  };
  bool is_bad(Progress& progress) const;
  void check_between(const char* call) const;

  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::map<const Optimizer*, Progress> progress_;  // since the last update()
};

}  // namespace lockstep
