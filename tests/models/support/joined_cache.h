// The simplest cache there is, to compare with: keys and values of one sequence, joined anew for every call.
#pragma once

#include <map>

#include "lockstep/models/generation/language_model.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::test {

class JoinedCache final : public CachedAttention {
 public:
  Tensor attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) override {
    calls.push_back(layer);
    Tensor& keys = keys_[layer];
    Tensor& values = values_[layer];
    keys = keys.defined() ? cat({keys, k}) : k.clone();
    values = values.defined() ? cat({values, v}) : v.clone();
    const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    const AttentionOptions options{
        .causal = true, .scale = scale, .variant = CausalVariant::lower_right, .enable_gqa = true};
    return scaled_dot_product_attention(heads_first(q), heads_first(keys), heads_first(values), options)
        .squeeze(0)
        .transpose(0, 1);
  }

  std::vector<int> calls;  // the layers, as they came

 private:
  std::map<int, Tensor> keys_, values_;
};

// The logits [T, V] of ids [T], all of them: the first `prompt` tokens in one call, the others one by one.
inline Tensor decode_all(const LanguageModel& model, const Tensor& ids, std::int64_t prompt) {
  const NoGrad no_grad;
  JoinedCache cache;
  std::vector<Tensor> logits;
  for (std::int64_t begin = 0, count = prompt; begin < ids.count(); begin += count, count = 1) {
    const Tensor places = arange(count, TensorOptions{.device = ids.device()});
    logits.push_back(model.decode({.tokens = ids.narrow(0, begin, count),
                                   .positions = places + static_cast<double>(begin),
                                   .wanted = places,
                                   .attention = &cache}));
  }
  return cat(logits);
}

}  // namespace lockstep::test
