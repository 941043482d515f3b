#include "lockstep/models/language/llama.h"

#include <cmath>

#include "lockstep/models/language/causal_attention.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {
namespace {

const LlamaConfig& checked(const LlamaConfig& c) {
  LOCKSTEP_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.intermediate_size > 0 && c.num_hidden_layers > 0 &&
                     c.num_attention_heads > 0 && c.key_value_heads() > 0 && c.head_size() > 0 &&
                     c.num_attention_heads % c.key_value_heads() == 0,
                 "[Llama] expected sizes above 0, and attention heads that go evenly to key and value heads, got "
                 "vocab_size ",
                 c.vocab_size, ", hidden_size ", c.hidden_size, ", intermediate_size ", c.intermediate_size,
                 ", num_hidden_layers ", c.num_hidden_layers, ", num_attention_heads ", c.num_attention_heads,
                 ", num_key_value_heads ", c.key_value_heads(), ", head_dim ", c.head_size());
  return c;
}

std::int64_t turned(const LlamaConfig& c) {
  return static_cast<std::int64_t>(c.partial_rotary_factor * static_cast<double>(c.head_size()));
}

Tensor rows(const Tensor& x, const Tensor& wanted) { return wanted.defined() ? index_select(x, 0, wanted) : x; }

}  // namespace

LlamaNorm::LlamaNorm(std::int64_t size, double eps) : weight(ones({size})), eps_(eps) {}

Tensor LlamaNorm::forward(const Tensor& x) const {
  const Tensor w = weight.on(x.device());
  const bool rounds_between = size_of(x.dtype()) < 4;
  return rounds_between ? rms_norm(x, w.shape(), {}, eps_) * w : rms_norm(x, w.shape(), w, eps_);
}

LlamaAttention::LlamaAttention(const LlamaConfig& c, int layer, FirstWeights first)
    : q_proj(detail::first_linear(c.hidden_size, c.num_attention_heads * c.head_size(), c.attention_bias, first,
                                  c.initializer_range)),
      k_proj(detail::first_linear(c.hidden_size, c.key_value_heads() * c.head_size(), c.attention_bias, first,
                                  c.initializer_range)),
      v_proj(detail::first_linear(c.hidden_size, c.key_value_heads() * c.head_size(), c.attention_bias, first,
                                  c.initializer_range)),
      o_proj(detail::first_linear(c.num_attention_heads * c.head_size(), c.hidden_size, c.output_bias, first,
                                  c.initializer_range)),
      layer_(layer),
      query_heads_(c.num_attention_heads),
      key_value_heads_(c.key_value_heads()),
      head_size_(c.head_size()) {}

Tensor LlamaAttention::heads(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention) const {
  const std::int64_t tokens = x.size(0);
  const Tensor q = q_proj(x).reshape({tokens, query_heads_, head_size_});
  const Tensor k = k_proj(x).reshape({tokens, key_value_heads_, head_size_});
  const Tensor v = v_proj(x).reshape({tokens, key_value_heads_, head_size_});
  const Tensor both = rotate(cat({q, k}, 1), angles);  // of both at once: a step of one token is bound by the calls
  return attention.attend(layer_, both.narrow(1, 0, query_heads_), both.narrow(1, query_heads_, key_value_heads_), v)
      .reshape({tokens, query_heads_ * head_size_});
}

void LlamaAttention::members(Members& m) {
  m("q_proj", q_proj);
  m("k_proj", k_proj);
  m("v_proj", v_proj);
  m("o_proj", o_proj);
}

LlamaMlp::LlamaMlp(const LlamaConfig& c, FirstWeights first)
    : gate_proj(detail::first_linear(c.hidden_size, c.intermediate_size, c.mlp_bias, first, c.initializer_range)),
      up_proj(detail::first_linear(c.hidden_size, c.intermediate_size, c.mlp_bias, first, c.initializer_range)),
      down_proj(detail::first_linear(c.intermediate_size, c.hidden_size, c.mlp_bias, first, c.initializer_range)) {}

Tensor LlamaMlp::forward(const Tensor& x) const { return down_proj(silu(gate_proj(x)) * up_proj(x)); }

void LlamaMlp::members(Members& m) {
  m("gate_proj", gate_proj);
  m("up_proj", up_proj);
  m("down_proj", down_proj);
}

LlamaLayer::LlamaLayer(const LlamaConfig& c, int layer, FirstWeights first)
    : input_layernorm(c.hidden_size, c.rms_norm_eps),
      self_attn(c, layer, first),
      post_attention_layernorm(c.hidden_size, c.rms_norm_eps),
      mlp(c, first) {}

Tensor LlamaLayer::forward(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention,
                           const Tensor& wanted) const {
  const Tensor heads = self_attn.heads(input_layernorm(x), angles, attention);
  const Tensor mixed = rows(x, wanted) + self_attn.o_proj(rows(heads, wanted));
  return mixed + mlp(post_attention_layernorm(mixed));
}

void LlamaLayer::members(Members& m) {
  m("input_layernorm", input_layernorm);
  m("self_attn", self_attn);
  m("post_attention_layernorm", post_attention_layernorm);
  m("mlp", mlp);
}

LlamaBody::LlamaBody(const LlamaConfig& c, FirstWeights first)
    : embed_tokens(detail::first_embedding(c.vocab_size, c.hidden_size, first, c.initializer_range)),
      norm(c.hidden_size, c.rms_norm_eps) {
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) layers.emplace_back(c, layer, first);
}

void LlamaBody::members(Members& m) {
  m("embed_tokens", embed_tokens);
  m("layers", layers);
  m("norm", norm);
}

Llama::Llama(const LlamaConfig& config, FirstWeights first)
    : model(checked(config), first), config_(config), rotary_(turned(config), config.rope) {
  if (!config.tie_word_embeddings)
    lm_head = detail::first_linear(config.hidden_size, config.vocab_size, false, first, config.initializer_range);
}

LanguageModelShape Llama::shape() const {
  return {.layers = config_.num_hidden_layers,
          .heads = config_.key_value_heads(),
          .head_size = config_.head_size(),
          .vocabulary = config_.vocab_size,
          .positions = config_.max_position_embeddings};
}

Tensor Llama::run(const Tensor& tokens, const Tensor& positions, CachedAttention& attention,
                  const Tensor& wanted) const {
  Tensor x = model.embed_tokens(tokens);
  const RotaryAngles angles = rotary_.at(positions, x.dtype());
  const LlamaLayer* const last = &model.layers.back();
  for (const LlamaLayer& layer : model.layers)
    x = layer.forward(x, angles, attention, &layer == last ? wanted : Tensor());
  x = model.norm(x);
  return lm_head ? (*lm_head)(x) : linear(x, model.embed_tokens.weight.on(x.device()));
}

Tensor Llama::forward(const Tensor& ids) const {
  const Tensor tokens = detail::flat_tokens("Llama", ids);
  detail::CausalAttention attention(ids.size(0));
  return run(tokens, detail::flat_positions(ids), attention, {})
      .reshape({ids.size(0), ids.size(1), config_.vocab_size});
}

Tensor Llama::decode(const DecodeStep& step) const {
  const CallScope scope(*this);  // all of the call computes with the same elements
  return run(step.tokens, step.positions, *step.attention, step.wanted);
}

std::optional<std::string> Llama::name_in_module(const std::string& name) const {
  if (name.ends_with(".rotary_emb.inv_freq") || (name == "lm_head.weight" && !lm_head)) return {};
  return name;
}

}  // namespace lockstep
