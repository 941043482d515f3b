// Attention with several heads. Parameters begin on cpu, in DefaultDType, with PyTorch's names, layouts, distributions
// and meanings of the masks.
#pragma once

#include <optional>

#include "lockstep/tensor/nn/linear.h"

namespace lockstep {

struct MultiheadAttentionOptions {
  double dropout = 0;  // of the attention's probabilities, in training
  bool bias = true;
  std::optional<std::int64_t> key_size = std::nullopt, value_size = std::nullopt;  // of the inputs; default: `size`
  bool batch_first = false;  // inputs are [batch, length, size] instead of [length, batch, size]
};

// What a query does not see. Masks of bool are true at what is NOT seen (scaled_dot_product_attention has it the other
// way round); floating ones are added to the scores.
struct AttentionMasks {
  Tensor attention = {};    // [T, S], or [B * heads, T, S]
  Tensor key_padding = {};  // [B, S]
  bool causal = false;      // query i sees the keys 0 … i, besides what the masks say
};

struct AttentionWithWeights {
  Tensor output;   // as forward gives it
  Tensor weights;  // [B, T, S], the mean of the heads, or [B, heads, T, S]; without B where there is no batch
  void fields(auto& f) { f(output, weights); }
};

// query [T, B, size], key [S, B, key_size], value [S, B, value_size] -> [T, B, size]; with batch_first the batch comes
// first; without a batch, matrices. The probabilities are never formed, unless forward_with_weights is asked for them.
// A query that sees no key attends to nothing: it gets the bias of out_proj.
//
// in_proj_weight [3 size, size] (or q_proj_weight, k_proj_weight, v_proj_weight where sizes differ), in_proj_bias
// [3 size], out_proj.weight, out_proj.bias.
class LOCKSTEP_API MultiheadAttention : public Module<MultiheadAttention> {
 public:
  // `size` must be a multiple of `heads`.
  MultiheadAttention(std::int64_t size, std::int64_t heads, const MultiheadAttentionOptions& options = {});
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) const;
  // Self-attention.
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const { return forward(x, x, x, masks); }
  // So that masks can be written in braces.
  using Module::operator();
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks) const {
    return Module::operator()(query, key, value, masks);
  }
  Tensor operator()(const Tensor& x, const AttentionMasks& masks) const { return Module::operator()(x, masks); }
  // With the probabilities too (in training: after the dropout), whose gradients flow like others'; takes T x S
  // matrices. A function of its own: hooks of the module do not see it.
  AttentionWithWeights forward_with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                            const AttentionMasks& masks = {}, bool average_weights = true) const;
  void members(Members& m) override;
  const MultiheadAttentionOptions& options() const { return options_; }
  std::int64_t heads() const { return heads_; }

  Parameter in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias;
  Linear out_proj;

 private:
  struct Projected {
    Tensor q, k, v;
  };
  Projected project(const Tensor& query, const Tensor& key, const Tensor& value) const;
  AttentionWithWeights attend(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks,
                              bool with_weights) const;
  std::int64_t size_, heads_;
  MultiheadAttentionOptions options_;
};

}  // namespace lockstep
