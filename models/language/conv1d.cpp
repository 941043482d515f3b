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
  const bool is_divided = ranks_ && ranks_->size() > 1;
  const Tensor in = is_divided && !adds_up_ ? copy_to_ranks(x, *ranks_) : x;
  if (quantized_) {
    if (!is_divided || !adds_up_) return quantized_->forward(in);
    return sum_over_ranks(quantized_->product(in), *ranks_) + quantized_->bias.on(x.device());
  }
  const Tensor w = weight.on(x.device()).t(), b = bias.on(x.device());
  return is_divided && adds_up_ ? sum_over_ranks(linear(in, w), *ranks_) + b : linear(in, w, b, activation_);
}

}  // namespace lockstep
