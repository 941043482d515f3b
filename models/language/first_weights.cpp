#include "lockstep/models/language/first_weights.h"

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {

namespace {

Parameter absent(const Shape& shape, const std::optional<Shard>& shard) {
  Parameter parameter = Parameter::uninitialized(shard ? shard->part_shape(shape) : shape, DefaultDType::get());
  if (shard) set_shard(parameter, *shard);
  return parameter;
}

Parameter part_of(const Tensor& whole, const std::optional<Shard>& shard) {
  return shard ? shard->take(whole) : Parameter(whole);
}

}  // namespace

Parameter first_weight(const Shape& shape, FirstWeights first, double deviation, const std::optional<Shard>& shard) {
  if (first == FirstWeights::absent) return absent(shape, shard);
  const Tensor weight = empty(shape);
  init::normal(weight, 0, deviation);
  return part_of(weight, shard);
}

Parameter first_zeros(const Shape& shape, FirstWeights first, const std::optional<Shard>& shard) {
  return first == FirstWeights::absent ? absent(shape, shard) : part_of(zeros(shape), shard);
}

Linear first_linear(std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first, double deviation,
                    const std::optional<Shard>& shard) {
  Linear layer(0, 0, {.bias = bias});  // its own first numbers would be drawn for nothing
  layer.weight = first_weight({outputs, inputs}, first, deviation, shard);
  if (bias) layer.bias = first_zeros({outputs}, first, shard && shard->dim == 0 ? shard : std::nullopt);
  return layer;
}

Embedding first_embedding(std::int64_t rows, std::int64_t size, FirstWeights first, double deviation,
                          const std::optional<Shard>& shard) {
  Embedding layer(1, 0);
  layer.weight = first_weight({rows, size}, first, deviation, shard);
  return layer;
}

}  // namespace lockstep::detail
