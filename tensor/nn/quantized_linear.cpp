#include "lockstep/tensor/nn/quantized_linear.h"

#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep {

QuantizedLinear::QuantizedLinear(const QuantizedWeight& quantized, Parameter added,
                                 const QuantizedLinearOptions& options)
    : bias(std::move(added)), inputs_(quantized.inputs), group_size_(quantized.group_size), options_(options) {
  quantized.check("QuantizedLinear");
  const Shape outputs{quantized.outputs()};
  LOCKSTEP_CHECK(!bias.defined() || bias.shape() == outputs, "[QuantizedLinear] expected a bias ", outputs, ", got ",
                 bias.shape());
  weight = Buffer(quantized.codes), scales = Buffer(quantized.scales);
  scales.body()->keeps_dtype = true;
}

QuantizedWeight QuantizedLinear::quantized_weight(Device device) const {
  return {weight.on(device), scales.on(device), inputs_, group_size_};
}

Tensor QuantizedLinear::forward(const Tensor& x) const {
  const Device device = x.device();
  return quantized_linear(x, quantized_weight(device), bias.defined() ? bias.on(device) : Tensor(), options_);
}

Tensor QuantizedLinear::product(const Tensor& x) const {
  return quantized_linear(x, quantized_weight(x.device()), {}, {.int8_activations = options_.int8_activations});
}

void QuantizableLayer::set_quantized(const QuantizedWeight& weight, bool int8_activations) {
  LOCKSTEP_CHECK(!quantized_, "[set_quantized] expected a layer with a weight in a floating dtype, got one that is ",
                 "quantised");
  const Parts own = parts();
  const Shape& shape = own.weight.shape();
  const Shape wanted = own.is_transposed ? Shape{shape[1], shape[0]} : shape, got{weight.outputs(), weight.inputs};
  LOCKSTEP_CHECK(wanted == got, "[set_quantized] expected a weight of ", wanted, ", got one of ", got);
  quantized_.emplace(weight, own.bias,
                     QuantizedLinearOptions{.activation = own.activation, .int8_activations = int8_activations});
  own.weight = Parameter(), own.bias = Parameter();
}

}  // namespace lockstep
