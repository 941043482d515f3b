// Affine maps whose weights are in fewer bits.
#pragma once

#include <optional>

#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/ops/quantized_ops.h"

namespace lockstep {

// x [.., inputs] -> activation(x @ weight^T + bias) [.., outputs]; see quantized_linear. The weight is a constant, the
// bias, which may be absent, a parameter. ModuleBase::to(DType) leaves the scales in f32.
class LOCKSTEP_API QuantizedLinear : public Module<QuantizedLinear> {
 public:
  // Shares the tensors. Throws InvalidArgument for a weight that is not one.
  explicit QuantizedLinear(const QuantizedWeight& quantized, Parameter bias = {},
                           const QuantizedLinearOptions& options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("scales", scales), m("bias", bias); }
  Tensor product(const Tensor& x) const;                  // x @ weight^T alone
  QuantizedWeight quantized_weight(Device device) const;  // as it is there

  Buffer weight, scales;  // codes and scales of a QuantizedWeight
  Parameter bias;

 private:
  std::int64_t inputs_, group_size_;
  QuantizedLinearOptions options_;
};

// A layer that can compute with its weight in fewer bits: Linear, and Conv1D of GPT-2. Its members are then those of a
// QuantizedLinear, under the same names, and its own `weight` and `bias` are absent.
class LOCKSTEP_API QuantizableLayer {
 public:
  virtual ~QuantizableLayer() = default;
  // Takes the place of the weight, which is [outputs, inputs] like `weight`. Throws InvalidArgument for another shape,
  // and in a layer that is quantised. Nobody may use the layer meanwhile; copies of the module made before keep theirs.
  void set_quantized(const QuantizedWeight& weight, bool int8_activations = false);
  const std::optional<QuantizedLinear>& quantized() const { return quantized_; }

  struct Parts {
    Parameter &weight, &bias;  // absent once quantised
    bool is_transposed;        // the weight is [inputs, outputs]
    Activation activation;
  };
  virtual Parts parts() = 0;

 protected:
  // What the members() and forward() of the layer ask first.
  bool list_quantized(Members& m) {
    if (!quantized_) return false;
    quantized_->members(m);
    return true;
  }

  std::optional<QuantizedLinear> quantized_;
};

}  // namespace lockstep
