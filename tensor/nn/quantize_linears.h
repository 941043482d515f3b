// The layers of a module in fewer bits, and what that costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/quantized_linear.h"

namespace lockstep {

struct QuantizedLayer {
  std::string name;
  Shape shape;  // [outputs, inputs]
  int bits;
  std::size_t bytes_before, bytes_after;  // of the weight, with its scales
  double max_error;                       // of an element
  double relative_error;                  // root of the errors' squares' sum over that of the elements' squares' sum
};

struct QuantizeLinearsOptions : QuantizeOptions {
  // Layers that stay: those with such a name, or below a module with it. It is one or several whole parts of a layer's
  // full name: "lm_head", "h.0", "mlp.c_proj". The first of a language model's ends is where errors cost most.
  std::vector<std::string> skip = {"lm_head"};
  bool int8_activations = false;  // see QuantizedLinearOptions
  // Called when a layer is done, the `done`th of `all`; what it throws ends the call, with the layers so far quantised.
  std::function<void(const QuantizedLayer& layer, std::size_t done, std::size_t all)> on_layer = {};
};

struct LOCKSTEP_API QuantizationReport {
  std::vector<QuantizedLayer> layers;  // in the order of the members
  std::vector<std::string> kept;       // layers that were left as they are

  std::size_t bytes_before() const;
  std::size_t bytes_after() const;
  std::string to_table() const;  // a line for each layer and one for their sum
  std::string to_json() const;   // an object with `layers`, `kept`, `bytes_before` and `bytes_after`
};

// What quantising `weight` [outputs, inputs] to `quantized` has changed.
LOCKSTEP_API QuantizedLayer compare_quantized(const std::string& name, const Tensor& weight,
                                              const QuantizedWeight& quantized);

// Puts weights in fewer bits into all layers of the module that can have them (QuantizableLayer) and are not skipped.
// A weight that other members share (an output matrix tied to an embedding) stays, and so does what is quantised
// already. The weights of a layer are freed when it is done. Throws what quantize throws, with the layer's name; those
// before it then are quantised. Nobody may use the module meanwhile. Optimizers made before go on with the old
// parameters: make them anew.
LOCKSTEP_API QuantizationReport quantize_linears(ModuleBase& module, const QuantizeLinearsOptions& options = {});

}  // namespace lockstep
