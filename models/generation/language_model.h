// What generation asks of a model that predicts the next token, and what such a model asks of the cache of its
// attention.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The attention of one call of a model, over what its sequences had before: behind it stands a cache.
class LOCKSTEP_API CachedAttention {
 public:
  virtual ~CachedAttention() = default;
  // Keeps the keys and values of the call's N tokens, and gives softmax(scale q k^T) v, where each token sees its own
  // sequence up to itself. q [N, H, D], after rotary embedding; k and v [N, G, D], H a multiple of G (query head h goes
  // with head h / (H / G)); any strides. Result [N, H, D]. `scale` is 1 / sqrt(D) when empty. Layers are counted from
  // 0; each attends once in a call, in order.
  virtual Tensor attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v,
                        std::optional<double> scale = std::nullopt) = 0;
};

// What a model computes in one call: tokens of one or several sequences, one after the other.
struct DecodeStep {
  Tensor tokens;               // [N] i64, on the model's device
  Tensor positions;            // [N] i64: of each token in its sequence, from 0
  Tensor wanted;               // [W] i64: which of the N tokens' logits are wanted
  CachedAttention* attention;  // borrowed for the call; never null
};

struct LanguageModelShape {
  int layers = 0;               // that keep keys and values
  std::int64_t heads = 0;       // of keys and values
  std::int64_t head_size = 0;   // elements
  std::int64_t vocabulary = 0;  // logits of a token
  std::int64_t positions = 0;   // tokens of a sequence at most; 0: any number
};

// A module that predicts the next token: GPT-2 and Llama are ones (models/language/), and so can be a program's own.
class LOCKSTEP_API LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual LanguageModelShape shape() const = 0;
  // The logits [W, vocabulary] of the wanted tokens, in the dtype of the model. Called without a graph being recorded.
  virtual Tensor decode(const DecodeStep& step) const = 0;
  // Where the parameters are, and the dtype in which keys and values are kept.
  virtual Device device() const = 0;
  virtual DType dtype() const = 0;
};

}  // namespace lockstep
