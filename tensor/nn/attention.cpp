#include "lockstep/tensor/nn/attention.h"

#include <limits>
#include <vector>

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {
namespace {

Parameter xavier(std::int64_t outputs, std::int64_t inputs) {
  const Tensor weight = empty({outputs, inputs});
  init::xavier_uniform(weight);
  return Parameter(weight);
}

// As scaled_dot_product_attention has it: true where a key is seen, or what is added to the scores.
Tensor inverted(const char* what, const Tensor& mask, const Tensor& like) {
  if (!mask.defined()) return {};
  LOCKSTEP_CHECK(mask.dtype() == DType::boolean || is_floating(mask.dtype()), "[MultiheadAttention] expected a ", what,
                 " of bool or a floating dtype, got ", mask);
  return mask.dtype() == DType::boolean ? logical_not(mask) : mask.to(like.dtype());
}

Tensor added(const Tensor& mask, DType dtype) {
  if (mask.dtype() != DType::boolean) return mask;
  const Tensor zero = zeros({}, {.dtype = dtype, .device = mask.device()});
  return where(mask, zero, full_like(zero, -std::numeric_limits<double>::infinity()));
}

Tensor both(const Tensor& a, const Tensor& b, DType dtype) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  if (a.dtype() == DType::boolean && b.dtype() == DType::boolean) return logical_and(a, b);
  return added(a, dtype) + added(b, dtype);
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t size, std::int64_t heads, const MultiheadAttentionOptions& options)
    : out_proj(size, size, {.bias = options.bias}), size_(size), heads_(heads), options_(options) {
  LOCKSTEP_CHECK(heads > 0 && size > 0 && size % heads == 0,
                 "[MultiheadAttention] expected a size that is a multiple of the number of heads, got ", size, " and ",
                 heads);
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "[MultiheadAttention] expected a probability, got ",
                 options.dropout);
  const std::int64_t key_size = options.key_size.value_or(size), value_size = options.value_size.value_or(size);
  if (key_size == size && value_size == size) {
    in_proj_weight = xavier(3 * size, size);
  } else {
    q_proj_weight = xavier(size, size);
    k_proj_weight = xavier(size, key_size);
    v_proj_weight = xavier(size, value_size);
  }
  if (!options.bias) return;
  in_proj_bias = Parameter(zeros({3 * size}));
  init::constant(out_proj.bias.tensor(), 0);
}

void MultiheadAttention::members(Members& m) {
  m("in_proj_weight", in_proj_weight);
  m("q_proj_weight", q_proj_weight);
  m("k_proj_weight", k_proj_weight);
  m("v_proj_weight", v_proj_weight);
  m("in_proj_bias", in_proj_bias);
  m("out_proj", out_proj);
}

MultiheadAttention::Projected MultiheadAttention::project(const Tensor& query, const Tensor& key,
                                                          const Tensor& value) const {
  const Device device = query.device();
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.on(device) : Tensor();
  if (in_proj_weight.defined() && query.identity() == key.identity() && key.identity() == value.identity()) {
    const std::vector<Tensor> parts = chunk(linear(query, in_proj_weight.on(device), bias), 3, -1);
    return {parts[0], parts[1], parts[2]};
  }
  std::vector<Tensor> weights, biases(3);
  if (in_proj_weight.defined())
    weights = chunk(in_proj_weight.on(device), 3, 0);
  else
    weights = {q_proj_weight.on(device), k_proj_weight.on(device), v_proj_weight.on(device)};
  if (bias.defined()) biases = chunk(bias, 3, 0);
  return {linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
          linear(value, weights[2], biases[2])};
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) const {
  return attend(query, key, value, masks, false).output;
}

AttentionWithWeights MultiheadAttention::forward_with_weights(const Tensor& query, const Tensor& key,
                                                              const Tensor& value, const AttentionMasks& masks,
                                                              bool average_weights) const {
  const CallScope scope(*this);
  AttentionWithWeights result = attend(query, key, value, masks, true);
  if (average_weights) result.weights = result.weights.mean({1});
  if (query.rank() == 2) result.weights = result.weights.squeeze(0);
  return result;
}

AttentionWithWeights MultiheadAttention::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                                const AttentionMasks& masks, bool with_weights) const {
  const int rank = query.rank();
  const bool fits = (rank == 2 || rank == 3) && key.rank() == rank && value.rank() == rank && query.size(-1) == size_ &&
                    key.size(-1) == options_.key_size.value_or(size_) &&
                    value.size(-1) == options_.value_size.value_or(size_);
  LOCKSTEP_CHECK(fits, "[MultiheadAttention] expected a query of size ", size_, ", a key of ",
                 options_.key_size.value_or(size_), " and a value of ", options_.value_size.value_or(size_),
                 ", all of rank 2 or 3, got ", query, ", ", key, " and ", value);
  const bool batched = rank == 3, batch_first = options_.batch_first || !batched;
  const Projected projected = project(query, key, value);
  // [B, heads, length, size of a head], without a copy.
  const auto split = [&](Tensor x) {
    if (!batched) x = x.unsqueeze(0);
    x = x.reshape({x.size(0), x.size(1), heads_, size_ / heads_});
    return batch_first ? x.transpose(1, 2) : x.permute({1, 2, 0, 3});
  };
  const Tensor q = split(projected.q), k = split(projected.k), v = split(projected.v);

  const std::int64_t batch = q.size(0), queries = q.size(2), keys = k.size(2);
  Tensor mask = inverted("mask", masks.attention, q);
  if (mask.defined() && mask.rank() == 3) {
    LOCKSTEP_CHECK(mask.size(0) == batch * heads_, "[MultiheadAttention] expected a mask [", queries, ", ", keys,
                   "] or [", batch * heads_, ", ", queries, ", ", keys, "], got ", mask);
    mask = mask.reshape({batch, heads_, mask.size(1), mask.size(2)});
  }
  Tensor padding = inverted("padding mask", masks.key_padding, q);
  if (padding.defined()) {
    LOCKSTEP_CHECK(padding.count() == batch * keys && padding.size(-1) == keys,
                   "[MultiheadAttention] expected a padding mask [", batch, ", ", keys, "], got ", padding);
    padding = padding.reshape({batch, 1, 1, keys});
  }
  const AttentionOptions options{
      .mask = both(mask, padding, q.dtype()), .causal = masks.causal, .dropout = is_training() ? options_.dropout : 0};
  AttentionResult attended;
  if (with_weights)
    attended = attention_with_weights(q, k, v, options);
  else
    attended.output = scaled_dot_product_attention(q, k, v, options);
  const Tensor& y = attended.output;
  Tensor joined = (batch_first ? y.transpose(1, 2) : y.permute({2, 0, 1, 3}));
  joined = joined.reshape({joined.size(0), joined.size(1), size_});
  const Tensor result = out_proj(joined);
  return {batched ? result : result.squeeze(0), attended.weights};
}

}  // namespace lockstep
