#include "lockstep/models/language/first_weights.h"

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {

Parameter first_weight(const Shape& shape, FirstWeights first, double deviation) {
  if (first == FirstWeights::absent) return Parameter::uninitialized(shape, DefaultDType::get());
  const Tensor weight = empty(shape);
  init::normal(weight, 0, deviation);
  return Parameter(weight);
}

Parameter first_zeros(const Shape& shape, FirstWeights first) {
  return first == FirstWeights::absent ? Parameter::uninitialized(shape, DefaultDType::get()) : Parameter(zeros(shape));
}

Linear first_linear(std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first, double deviation) {
  Linear layer(0, 0, {.bias = bias});  // its own first numbers would be drawn for nothing
  layer.weight = first_weight({outputs, inputs}, first, deviation);
  if (bias) layer.bias = first_zeros({outputs}, first);
  return layer;
}

Embedding first_embedding(std::int64_t rows, std::int64_t size, FirstWeights first, double deviation) {
  Embedding layer(1, 0);
  layer.weight = first_weight({rows, size}, first, deviation);
  return layer;
}

}  // namespace lockstep::detail
