#include "lockstep/models/language/llama.h"

#include <cmath>

#include "lockstep/models/language/causal_attention.h"
#include "lockstep/parallel/tensor_parallel/parallel_attention.h"
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

const LlamaConfig& checked(const LlamaConfig& c, const Communicator* ranks) {
  checked(c);
  if (ranks) heads_of_rank("Llama", c.num_attention_heads, c.key_value_heads(), ranks->size());
  detail::check_divides("Llama", "intermediate_size", c.intermediate_size, ranks);
  return c;
}

// A projection to the outputs (columns) or from the inputs (rows) of which each rank has its share.
Linear columns(const LlamaConfig& c, std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first,
               Communicator* ranks) {
  return detail::first_linear(inputs, outputs, bias, first, c.initializer_range,
                              detail::divided("Llama", ranks, 0, {outputs}));
}
Linear rows(const LlamaConfig& c, std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first,
            Communicator* ranks) {
  return detail::first_linear(inputs, outputs, bias, first, c.initializer_range,
                              detail::divided("Llama", ranks, 1, {inputs}));
}

std::int64_t turned(const LlamaConfig& c) {
  return static_cast<std::int64_t>(c.partial_rotary_factor * static_cast<double>(c.head_size()));
}

Tensor wanted_rows(const Tensor& x, const Tensor& wanted) { return wanted.defined() ? index_select(x, 0, wanted) : x; }

}  // namespace

LlamaNorm::LlamaNorm(std::int64_t size, double eps) : weight(ones({size})), eps_(eps) {}

Tensor LlamaNorm::forward(const Tensor& x) const {
  const Tensor w = weight.on(x.device());
  const bool rounds_between = size_of(x.dtype()) < 4;
  return rounds_between ? rms_norm(x, w.shape(), {}, eps_) * w : rms_norm(x, w.shape(), w, eps_);
}

LlamaAttention::LlamaAttention(const LlamaConfig& c, int layer, FirstWeights first, Communicator* ranks)
    : q_proj(columns(c, c.hidden_size, c.num_attention_heads * c.head_size(), c.attention_bias, first, ranks)),
      k_proj(columns(c, c.hidden_size, c.key_value_heads() * c.head_size(), c.attention_bias, first, ranks)),
      v_proj(columns(c, c.hidden_size, c.key_value_heads() * c.head_size(), c.attention_bias, first, ranks)),
      o_proj(rows(c, c.num_attention_heads * c.head_size(), c.hidden_size, c.output_bias, first, ranks)),
      layer_(layer),
      query_heads_(c.num_attention_heads / (ranks ? ranks->size() : 1)),
      key_value_heads_(c.key_value_heads() / (ranks ? ranks->size() : 1)),
      head_size_(c.head_size()),
      ranks_(ranks) {}

Tensor LlamaAttention::heads(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention) const {
  const std::int64_t tokens = x.size(0);
  const Tensor in = detail::into(x, ranks_);
  const Tensor q = q_proj(in).reshape({tokens, query_heads_, head_size_});
  const Tensor k = k_proj(in).reshape({tokens, key_value_heads_, head_size_});
  const Tensor v = v_proj(in).reshape({tokens, key_value_heads_, head_size_});
  const Tensor both = rotate(cat({q, k}, 1), angles);  // of both at once: a step of one token is bound by the calls
  return attention.attend(layer_, both.narrow(1, 0, query_heads_), both.narrow(1, query_heads_, key_value_heads_), v)
      .reshape({tokens, query_heads_ * head_size_});
}

Tensor LlamaAttention::mixed(const Tensor& heads) const { return detail::out_of(o_proj, heads, ranks_); }

void LlamaAttention::members(Members& m) {
  m("q_proj", q_proj);
  m("k_proj", k_proj);
  m("v_proj", v_proj);
  m("o_proj", o_proj);
}

LlamaMlp::LlamaMlp(const LlamaConfig& c, FirstWeights first, Communicator* ranks)
    : gate_proj(columns(c, c.hidden_size, c.intermediate_size, c.mlp_bias, first, ranks)),
      up_proj(columns(c, c.hidden_size, c.intermediate_size, c.mlp_bias, first, ranks)),
      down_proj(rows(c, c.intermediate_size, c.hidden_size, c.mlp_bias, first, ranks)),
      ranks_(ranks) {}

Tensor LlamaMlp::forward(const Tensor& x) const {
  const Tensor in = detail::into(x, ranks_);
  return detail::out_of(down_proj, silu(gate_proj(in)) * up_proj(in), ranks_);
}

void LlamaMlp::members(Members& m) {
  m("gate_proj", gate_proj);
  m("up_proj", up_proj);
  m("down_proj", down_proj);
}

LlamaLayer::LlamaLayer(const LlamaConfig& c, int layer, FirstWeights first, Communicator* ranks)
    : input_layernorm(c.hidden_size, c.rms_norm_eps),
      self_attn(c, layer, first, ranks),
      post_attention_layernorm(c.hidden_size, c.rms_norm_eps),
      mlp(c, first, ranks) {}

Tensor LlamaLayer::forward(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention,
                           const Tensor& wanted) const {
  const Tensor heads = self_attn.heads(input_layernorm(x), angles, attention);
  const Tensor mixed = wanted_rows(x, wanted) + self_attn.mixed(wanted_rows(heads, wanted));
  return mixed + mlp(post_attention_layernorm(mixed));
}

void LlamaLayer::members(Members& m) {
  m("input_layernorm", input_layernorm);
  m("self_attn", self_attn);
  m("post_attention_layernorm", post_attention_layernorm);
  m("mlp", mlp);
}

LlamaBody::LlamaBody(const LlamaConfig& c, FirstWeights first, Communicator* ranks)
    : embed_tokens(detail::first_embedding(c.vocab_size, c.hidden_size, first, c.initializer_range,
                                           detail::DividedWords(ranks, c.vocab_size).shard())),
      norm(c.hidden_size, c.rms_norm_eps) {
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) layers.emplace_back(c, layer, first, ranks);
}

void LlamaBody::members(Members& m) {
  m("embed_tokens", embed_tokens);
  m("layers", layers);
  m("norm", norm);
}

Llama::Llama(const LlamaConfig& config, FirstWeights first, Communicator* ranks)
    : Llama(checked(config, ranks), first, ranks, SameDraws(first == FirstWeights::random ? ranks : nullptr)) {}

Llama::Llama(const LlamaConfig& config, FirstWeights first, Communicator* ranks, const SameDraws&)
    : model(config, first, ranks),
      config_(config),
      rotary_(turned(config), config.rope),
      ranks_(ranks),
      words_(ranks, config.vocab_size) {
  if (!config.tie_word_embeddings)
    lm_head = detail::first_linear(config.hidden_size, config.vocab_size, false, first, config.initializer_range,
                                   words_.shard());
}

LanguageModelShape Llama::shape() const {
  return {.layers = config_.num_hidden_layers,
          .heads = config_.key_value_heads() / (ranks_ ? ranks_->size() : 1),
          .head_size = config_.head_size(),
          .vocabulary = config_.vocab_size,
          .positions = config_.max_position_embeddings};
}

Tensor Llama::run(const Tensor& tokens, const Tensor& positions, CachedAttention& attention,
                  const Tensor& wanted) const {
  Tensor x = words_.embed(model.embed_tokens, tokens);
  const RotaryAngles angles = rotary_.at(positions, x.dtype());
  const LlamaLayer* const last = &model.layers.back();
  for (const LlamaLayer& layer : model.layers)
    x = layer.forward(x, angles, attention, &layer == last ? wanted : Tensor());
  return words_.own_logits(lm_head ? &*lm_head : nullptr, model.embed_tokens, model.norm(x));
}

Tensor Llama::run(const Tensor& ids) const {
  const Tensor tokens = detail::flat_tokens("Llama", ids);
  detail::CausalAttention attention(ids.size(0));
  return run(tokens, detail::flat_positions(ids), attention, {});
}

Tensor Llama::forward(const Tensor& ids) const {
  return words_.whole(run(ids)).reshape({ids.size(0), ids.size(1), config_.vocab_size});
}

Tensor Llama::own_logits(const Tensor& ids) const {
  const CallScope scope(*this);
  const Tensor logits = run(ids);
  return logits.reshape({ids.size(0), ids.size(1), logits.size(1)});
}

Tensor Llama::decode(const DecodeStep& step) const {
  const CallScope scope(*this);  // all of the call computes with the same elements
  return words_.whole(run(step.tokens, step.positions, *step.attention, step.wanted));
}

std::optional<std::string> Llama::name_in_module(const std::string& name) const {
  if (name.ends_with(".rotary_emb.inv_freq") || (name == "lm_head.weight" && !lm_head)) return {};
  return name;
}

}  // namespace lockstep
