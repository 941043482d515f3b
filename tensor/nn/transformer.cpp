#include "lockstep/tensor/nn/transformer.h"

#include "lockstep/tensor/ops/ops.h"

namespace lockstep {

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t size, std::int64_t heads,
                                                 const TransformerEncoderLayerOptions& options)
    : self_attn(size, heads, {.dropout = options.dropout, .bias = options.bias, .batch_first = options.batch_first}),
      linear1(size, options.feedforward, {.bias = options.bias}),
      linear2(options.feedforward, size, {.bias = options.bias}),
      norm1(size, {.eps = options.eps, .bias = options.bias}),
      norm2(size, {.eps = options.eps, .bias = options.bias}),
      options_(options),
      dropout_(options.dropout),
      dropout1_(options.dropout),
      dropout2_(options.dropout) {}

void TransformerEncoderLayer::members(Members& m) {
  m("self_attn", self_attn);
  m("linear1", linear1);
  m("dropout", dropout_);
  m("linear2", linear2);
  m("norm1", norm1);
  m("norm2", norm2);
  m("dropout1", dropout1_);
  m("dropout2", dropout2_);
}

Tensor TransformerEncoderLayer::attend(const Tensor& x, const AttentionMasks& masks) const {
  return dropout1_(self_attn(x, masks));
}

Tensor TransformerEncoderLayer::feed(const Tensor& x) const {
  const Tensor wide = linear1(x);
  const Tensor active = options_.activation == TransformerActivation::relu ? relu(wide) : gelu(wide);
  return dropout2_(linear2(dropout_(active)));
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMasks& masks) const {
  if (options_.norm_first) {
    const Tensor y = x + attend(norm1(x), masks);
    return y + feed(norm2(y));
  }
  const Tensor y = norm1(x + attend(x, masks));
  return norm2(y + feed(y));
}

TransformerEncoder::TransformerEncoder(const TransformerEncoderLayer& layer, std::int64_t count,
                                       const std::optional<LayerNorm>& last)
    : norm(last) {
  LOCKSTEP_CHECK(count >= 0, "[TransformerEncoder] expected a number of layers of at least 0, got ", count);
  for (std::int64_t i = 0; i < count; ++i) layers.push_back(deep_copy(layer));
}

void TransformerEncoder::members(Members& m) { m("layers", layers), m("norm", norm); }

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMasks& masks) const {
  Tensor y = x;
  for (const TransformerEncoderLayer& layer : layers) y = layer(y, masks);
  return norm ? (*norm)(y) : y;
}

}  // namespace lockstep
