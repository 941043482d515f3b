// AmpOptimWrapper: an OptimWrapper for mixed precision: autocast around the forward, a scaled loss, and steps that are
// skipped where a gradient has overflown. After mmengine's class.
//
//   AmpOptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}), {.loss_scale = 512.0, .dtype = DType::f16});
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"
#include "lockstep/tensor/optim/grad_scaler.h"

namespace lockstep {

// "dynamic" (adapts: see GradScaler), a number (stays what it is), or the scaler's own options.
class LOCKSTEP_API LossScale {
 public:
  LossScale(const char* text = "dynamic");  // NOLINT: throws InvalidArgument for another
  LossScale(double scale) : options_{.init_scale = scale, .dynamic = false} {}  // NOLINT
  LossScale(const GradScalerOptions& options) : options_(options) {}            // NOLINT
  const GradScalerOptions& options() const { return options_; }

 private:
  GradScalerOptions options_;
};

struct AmpOptimWrapperOptions {
  LossScale loss_scale = {};
  DType dtype = DType::f16;  // of autocast: f16 or bf16
  std::int64_t accumulative_counts = 1;
  std::optional<ClipGrad> clip_grad = std::nullopt;
};

class LOCKSTEP_API AmpOptimWrapper : public OptimWrapper {
 public:
  // Throws InvalidArgument for options that make no sense.
  explicit AmpOptimWrapper(std::unique_ptr<Optimizer> optimizer, AmpOptimWrapperOptions options = {});
  template <std::derived_from<Optimizer> O>
  explicit AmpOptimWrapper(O optimizer, AmpOptimWrapperOptions options = {})
      : AmpOptimWrapper(std::make_unique<O>(std::move(optimizer)), std::move(options)) {}

  // Of the loss times the scale. A loss in f16 overflows at a scale of 65536 (under autocast losses are f32).
  void backward(const Tensor& loss) override;
  // Divides the gradients by the scale, clips, steps unless a gradient is infinite or NaN, and adapts the scale. Blocks
  // the host until the gradients are known. With error_if_nonfinite an overflow is an Error; the scale has adapted.
  void step() override;

  const GradScaler& loss_scaler() const { return scaler_; }
  DType dtype() const { return dtype_; }

  // With the scaler's entries as "loss_scaler.scale" and so on. A number that was given as loss_scale stays, and so
  // does the scale where a state has no such entries.
  std::vector<NamedTensor> state_dict() const override;
  void load_state_dict(const std::vector<NamedTensor>& state) override;

 protected:
  std::unique_ptr<Autocast> autocast() const override { return std::make_unique<Autocast>(dtype_); }

 private:
  GradScaler scaler_;
  DType dtype_;
};

}  // namespace lockstep
