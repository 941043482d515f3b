#include "lockstep/models/language/causal_attention.h"

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/sequence_ops.h"

namespace lockstep::detail {

Tensor CausalAttention::attend(int, const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) {
  // [texts * T, H, D] as [texts, H, T, D], without a copy.
  const auto by_text = [&](const Tensor& x) {
    return x.reshape({texts_, texts_ > 0 ? x.size(0) / texts_ : 0, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const AttentionOptions options{
      .causal = true, .scale = scale, .dropout = dropout_, .enable_gqa = q.size(1) != k.size(1)};
  const Tensor mixed = scaled_dot_product_attention(by_text(q), by_text(k), by_text(v), options);
  return mixed.transpose(1, 2).reshape(q.shape());
}

Tensor flat_tokens(const char* model, const Tensor& ids) {
  LOCKSTEP_CHECK(ids.defined() && ids.rank() == 2 && !is_floating(ids.dtype()), "[", model,
                 "] expected ids [B, T] of integers, got ", ids);
  return ids.reshape({ids.count()});
}

Tensor flat_positions(const Tensor& ids) {
  const std::int64_t texts = ids.size(0), length = ids.size(1);
  return arange(length, TensorOptions{.device = ids.device()})
      .reshape({1, length})
      .expand({texts, length})
      .reshape({texts * length});
}

}  // namespace lockstep::detail
