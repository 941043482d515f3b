// Layers of transformers (Vaswani et al., 2017). Parameters begin on cpu, in DefaultDType, with PyTorch's names,
// layouts and distributions.
#pragma once

#include <optional>

#include "lockstep/tensor/nn/attention.h"
#include "lockstep/tensor/nn/containers.h"
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/nn/simple_layers.h"

namespace lockstep {

enum class TransformerActivation : std::uint8_t { relu, gelu };

struct TransformerEncoderLayerOptions {
  std::int64_t feedforward = 2048;  // size between linear1 and linear2
  double dropout = 0.1;
  TransformerActivation activation = TransformerActivation::relu;
  double eps = 1e-5;         // of the norms
  bool batch_first = false;  // inputs are [batch, length, size] instead of [length, batch, size]
  bool norm_first = false;   // normalise what goes into a block instead of what comes out (Xiong et al., 2020)
  bool bias = true;
};

// Self-attention, then two affine maps, each with a way around it and a norm: self_attn, linear1, linear2, norm1,
// norm2.
class LOCKSTEP_API TransformerEncoderLayer : public Module<TransformerEncoderLayer> {
 public:
  TransformerEncoderLayer(std::int64_t size, std::int64_t heads, const TransformerEncoderLayerOptions& options = {});
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
  using Module::operator();
  Tensor operator()(const Tensor& x, const AttentionMasks& masks) const { return Module::operator()(x, masks); }
  void members(Members& m) override;

  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;

 private:
  Tensor attend(const Tensor& x, const AttentionMasks& masks) const;
  Tensor feed(const Tensor& x) const;
  TransformerEncoderLayerOptions options_;
  Dropout dropout_, dropout1_, dropout2_;
};

// A chain of copies of one layer (with parameters of their own, equal at first): layers.0, layers.1, …; and a norm at
// its end, if one is given: norm.
class LOCKSTEP_API TransformerEncoder : public Module<TransformerEncoder> {
 public:
  TransformerEncoder(const TransformerEncoderLayer& layer, std::int64_t count,
                     const std::optional<LayerNorm>& norm = std::nullopt);
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
  using Module::operator();
  Tensor operator()(const Tensor& x, const AttentionMasks& masks) const { return Module::operator()(x, masks); }
  void members(Members& m) override;

  ModuleList<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;
};

}  // namespace lockstep
