#include "lockstep/parallel/openmmlab/optim/amp_optim_wrapper.h"

#include <string_view>

namespace lockstep {
LossScale::LossScale(const char* text) {
  LOCKSTEP_CHECK(text != nullptr && std::string_view(text) == "dynamic",
                 "[AmpOptimWrapper] expected a loss_scale of 'dynamic', a number or GradScalerOptions, got '",
                 text == nullptr ? "" : text, "'");
}

AmpOptimWrapper::AmpOptimWrapper(std::unique_ptr<Optimizer> optimizer, AmpOptimWrapperOptions options)
    : OptimWrapper(std::move(optimizer), {options.accumulative_counts, std::move(options.clip_grad)}),
      scaler_(options.loss_scale.options()),
      dtype_(options.dtype) {
  LOCKSTEP_CHECK(dtype_ == DType::f16 || dtype_ == DType::bf16,
                 "[AmpOptimWrapper] expected a dtype of f16 or bf16, got ", dtype_);
}

void AmpOptimWrapper::backward(const Tensor& loss) { OptimWrapper::backward(scaler_.scale(loss)); }

void AmpOptimWrapper::step() {
  try {
    scaler_.unscale_(optimizer());
    clip_grad();
    scaler_.step(optimizer());
  } catch (...) {
    try {
      scaler_.update();       // or the next step would find this one unfinished
    } catch (const Error&) {  // it had not begun
    }
    throw;
  }
  scaler_.update();
}

std::vector<NamedTensor> AmpOptimWrapper::state_dict() const {
  std::vector<NamedTensor> state = OptimWrapper::state_dict();
  for (NamedTensor& entry : scaler_.state_dict())
    state.push_back({cat(kScalerPrefix, entry.name), std::move(entry.tensor)});
  return state;
}

void AmpOptimWrapper::load_state_dict(const std::vector<NamedTensor>& state) {
  std::vector<NamedTensor> of_scaler, rest;
  for (const NamedTensor& entry : state) {
    if (entry.name.starts_with(kScalerPrefix))
      of_scaler.push_back({entry.name.substr(kScalerPrefix.size()), entry.tensor});
    else
      rest.push_back(entry);
  }
  GradScaler scaler = scaler_;
  if (!of_scaler.empty()) scaler.load_state_dict(of_scaler);
  if (!scaler_.options().dynamic) scaler = scaler_;  // pinned
  OptimWrapper::load_state_dict(rest);
  scaler_ = std::move(scaler);
}

}  // namespace lockstep
