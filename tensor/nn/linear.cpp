#include "lockstep/tensor/nn/linear.h"

#include "lockstep/tensor/nn/folding.h"
#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/prepared_ops.h"

namespace lockstep {

Linear::Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options) : activation_(options.activation) {
  LOCKSTEP_CHECK(inputs >= 0 && outputs >= 0, "[Linear] expected sizes of at least 0, got ", inputs, " and ", outputs);
  const Tensor w = empty({outputs, inputs}), b = options.bias ? empty({outputs}) : Tensor();
  init::default_affine(w, b);
  weight = Parameter(w);
  if (options.bias) bias = Parameter(b);
}

Tensor Linear::forward(const Tensor& x) const {
  if (quantized_) return quantized_->forward(x);
  const Device device = x.device();
  const Tensor w = weight.on(device), b = bias.defined() ? bias.on(device) : Tensor();
  if (detail::FoldingCall* const call = detail::folding_call()) [[unlikely]]
    // A norm takes dimension 1 for the channels, which are the outputs in a matrix alone. A product has one activation.
    return call->layer(
        {.layer = this,
         .x = x,
         .weight = w,
         .bias = b,
         .folds = !state_->has_hooks && activation_ == Activation::none && x.rank() == 2 && x.size(1) == w.size(1),
         .packs = true,
         .activation = activation_,
         .shape =
             [](const detail::FoldedLayer& l) {
               return Shape{l.x.size(0), l.weight.size(0)};
             },
         .compute =
             [](const detail::FoldedLayer& l, const detail::LayerWeights& weights, bool with_relu) {
               return detail::linear(l.x, weights.weight, weights.bias, with_relu ? Activation::relu : l.activation,
                                     weights.packed);
             }});
  return linear(x, w, b, activation_);
}

Embedding::Embedding(std::int64_t rows, std::int64_t size, EmbeddingOptions options) : options_(options) {
  LOCKSTEP_CHECK(rows > 0 && size >= 0, "[Embedding] expected at least one row, got ", rows, " rows of ", size);
  const Tensor w = empty({rows, size});
  init::normal(w);
  if (const std::optional<std::int64_t>& row = options_.padding_index) {
    LOCKSTEP_CHECK(*row >= -rows && *row < rows, "[Embedding] expected a padding index in [", -rows, ", ", rows,
                   "), got ", *row);
    init::constant(w.select(0, *row), 0);
  }
  weight = Parameter(w);
  weight.body()->sparse = options_.sparse;
}

Tensor Embedding::forward(const Tensor& indices) const {
  return embedding(weight.on(indices.device()), indices, options_);
}

}  // namespace lockstep
