#include "lockstep/models/language/conv1d.h"

#include "lockstep/parallel/tensor_parallel/rank_ops.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

Conv1D::Conv1D(std::int64_t inputs, std::int64_t outputs, FirstWeights first, double deviation, Activation activation,
               Communicator* ranks, const std::optional<Shard>& shard)
    : weight(detail::first_weight({inputs, outputs}, first, deviation, shard)),
      activation_(activation),
      ranks_(ranks),
      adds_up_(shard && shard->dim == 0) {
  std::optional<Shard> of_bias = adds_up_ ? std::nullopt : shard;
  if (of_bias) of_bias->dim = 0;
  bias = detail::first_zeros({outputs}, first, of_bias);
}

Tensor Conv1D::forward(const Tensor& x) const {
  if (quantized_) return quantized_->forward(x);
  const Tensor w = weight.on(x.device()).t(), b = bias.on(x.device());
  if (!ranks_ || ranks_->size() == 1) return linear(x, w, b, activation_);
  return adds_up_ ? sum_over_ranks(linear(x, w), *ranks_) + b : linear(copy_to_ranks(x, *ranks_), w, b, activation_);
}

}  // namespace lockstep
