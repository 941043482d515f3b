// A language model by its kind, and how far apart two results are.
#pragma once

#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep::test {

inline Tensor forward(const LanguageModel& model, const Tensor& ids) {
  const NoGrad no_grad;
  if (const auto* gpt2 = dynamic_cast<const Gpt2*>(&model)) return (*gpt2)(ids);
  return dynamic_cast<const Llama&>(model)(ids);
}

// The largest distance between two elements, on any devices.
inline double distance(const Tensor& a, const Tensor& b) {
  return max(abs(a.to(Device::cpu()).to(DType::f32) - b.to(Device::cpu()).to(DType::f32))).item<double>();
}

}  // namespace lockstep::test
