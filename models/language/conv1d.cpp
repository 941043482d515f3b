#include "lockstep/models/language/conv1d.h"

namespace lockstep {

Conv1D::Conv1D(std::int64_t inputs, std::int64_t outputs, FirstWeights first, double deviation, Activation activation)
    : weight(detail::first_weight({inputs, outputs}, first, deviation)),
      bias(detail::first_zeros({outputs}, first)),
      activation_(activation) {}

Tensor Conv1D::forward(const Tensor& x) const {
  return linear(x, weight.on(x.device()).t(), bias.on(x.device()), activation_);
}

}  // namespace lockstep
