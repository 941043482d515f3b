// Affine maps and embeddings. Parameters begin on cpu, in DefaultDType, with PyTorch's names, layouts and
// distributions.
#pragma once

#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/nn/quantized_linear.h"
#include "lockstep/tensor/ops/nn_ops.h"

namespace lockstep {

struct LinearOptions {
  bool bias = true;
  Activation activation = Activation::none;  // of the result, computed with the product where that is possible
};

// x [.., inputs] -> activation(x @ weight^T + bias) [.., outputs]; weight [outputs, inputs], bias [outputs].
class LOCKSTEP_API Linear : public Module<Linear>, public QuantizableLayer {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override {
    if (!list_quantized(m)) m("weight", weight), m("bias", bias);
  }
  Parts parts() override { return {weight, bias, false, activation_}; }

  Parameter weight, bias;

 private:
  Activation activation_;
};

// indices of any shape -> the rows of weight [rows, size] at them; one more dimension, of `size`. The row
// options.padding_index begins as zeros.
class LOCKSTEP_API Embedding : public Module<Embedding> {
 public:
  Embedding(std::int64_t rows, std::int64_t size, EmbeddingOptions options = {});
  Tensor forward(const Tensor& indices) const;
  void members(Members& m) override { m("weight", weight); }
  const EmbeddingOptions& options() const { return options_; }

  Parameter weight;

 private:
  EmbeddingOptions options_;
};

}  // namespace lockstep
