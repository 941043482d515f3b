#include "lockstep/models/language/gpt2.h"

#include <cmath>
#include <utility>

#include "lockstep/models/language/causal_attention.h"
#include "lockstep/parallel/tensor_parallel/parallel_attention.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {
namespace {

const GptConfig& checked(const GptConfig& c) {
  LOCKSTEP_CHECK(c.vocab_size > 0 && c.n_positions > 0 && c.n_layer > 0 && c.n_head > 0 && c.n_embd > 0 &&
                     c.n_embd % c.n_head == 0 && c.n_inner.value_or(1) > 0,
                 "[Gpt2] expected sizes above 0, and n_head heads that n_embd can be divided into, got vocab_size ",
                 c.vocab_size, ", n_positions ", c.n_positions, ", n_layer ", c.n_layer, ", n_head ", c.n_head,
                 ", n_embd ", c.n_embd, ", n_inner ", c.n_inner.value_or(4 * c.n_embd));
  return c;
}

std::int64_t inner_width(const GptConfig& c) { return c.n_inner.value_or(4 * c.n_embd); }

const GptConfig& checked(const GptConfig& c, const Communicator* ranks) {
  checked(c);
  if (ranks) heads_of_rank("Gpt2", c.n_head, c.n_head, ranks->size());
  detail::check_divides("Gpt2", "n_inner", inner_width(c), ranks);
  return c;
}

// Of what each block adds to the stream, of which there are two for each layer.
double residual_deviation(const GptConfig& c) { return c.initializer_range / std::sqrt(2.0 * c.n_layer); }

Tensor rows(const Tensor& x, const Tensor& wanted) { return wanted.defined() ? index_select(x, 0, wanted) : x; }

}  // namespace

Gpt2Attention::Gpt2Attention(const GptConfig& c, int layer, FirstWeights first, Communicator* ranks)
    : c_attn(c.n_embd, 3 * c.n_embd, first, c.initializer_range, Activation::none, ranks,
             detail::divided("Gpt2", ranks, 1, {c.n_embd, c.n_embd, c.n_embd})),
      c_proj(c.n_embd, c.n_embd, first, residual_deviation(c), Activation::none, ranks,
             detail::divided("Gpt2", ranks, 0, {c.n_embd})),
      layer_(layer),
      heads_(c.n_head / (ranks ? ranks->size() : 1)),
      head_size_(c.n_embd / c.n_head),
      scale_((c.scale_attn_weights ? 1 / std::sqrt(static_cast<double>(c.n_embd) / static_cast<double>(c.n_head)) : 1) /
             (c.scale_attn_by_inverse_layer_idx ? layer + 1 : 1)),
      ranks_(ranks) {}

Tensor Gpt2Attention::heads(const Tensor& x, CachedAttention& attention) const {
  const std::int64_t tokens = x.size(0);
  const Tensor all = c_attn(x).reshape({tokens, 3, heads_, head_size_});
  const OwnDraws draws(ranks_ ? ranks_->rank() : 0);  // what is dropped of other heads is not alike
  return attention.attend(layer_, all.select(1, 0), all.select(1, 1), all.select(1, 2), scale_)
      .reshape({tokens, heads_ * head_size_});
}

Gpt2Mlp::Gpt2Mlp(const GptConfig& c, FirstWeights first, Communicator* ranks)
    : c_fc(c.n_embd, inner_width(c), first, c.initializer_range, c.activation, ranks,
           detail::divided("Gpt2", ranks, 1, {inner_width(c)})),
      c_proj(inner_width(c), c.n_embd, first, residual_deviation(c), Activation::none, ranks,
             detail::divided("Gpt2", ranks, 0, {inner_width(c)})) {}

Gpt2Block::Gpt2Block(const GptConfig& c, int layer, FirstWeights first, Communicator* ranks)
    : ln_1(c.n_embd, {.eps = c.layer_norm_epsilon}),
      attn(c, layer, first, ranks),
      ln_2(c.n_embd, {.eps = c.layer_norm_epsilon}),
      mlp(c, first, ranks),
      dropout_(c.resid_pdrop) {}

Tensor Gpt2Block::forward(const Tensor& x, CachedAttention& attention, const Tensor& wanted) const {
  const bool training = is_training();
  const Tensor heads = attn.heads(ln_1(x), attention);
  const Tensor mixed = rows(x, wanted) + dropout(attn.c_proj(rows(heads, wanted)), dropout_, training);
  return mixed + dropout(mlp(ln_2(mixed)), dropout_, training);
}

Gpt2::Gpt2(const GptConfig& config, FirstWeights first, Communicator* ranks)
    : Gpt2(checked(config, ranks), first, ranks, SameDraws(first == FirstWeights::random ? ranks : nullptr)) {}

Gpt2::Gpt2(const GptConfig& config, FirstWeights first, Communicator* ranks, const SameDraws&)
    : wte(detail::first_embedding(config.vocab_size, config.n_embd, first, config.initializer_range,
                                  detail::DividedWords(ranks, config.vocab_size).shard())),
      wpe(detail::first_embedding(config.n_positions, config.n_embd, first, config.initializer_range)),
      ln_f(config.n_embd, {.eps = config.layer_norm_epsilon}),
      config_(config),
      ranks_(ranks),
      words_(ranks, config.vocab_size) {
  for (int layer = 0; layer < config.n_layer; ++layer) h.emplace_back(config, layer, first, ranks);
  if (!config.tie_word_embeddings)
    lm_head =
        detail::first_linear(config.n_embd, config.vocab_size, false, first, config.initializer_range, words_.shard());
}

void Gpt2::members(Members& m) {
  m("wte", wte);
  m("wpe", wpe);
  m("h", h);
  m("ln_f", ln_f);
  m("lm_head", lm_head);
}

LanguageModelShape Gpt2::shape() const {
  return {.layers = config_.n_layer,
          .heads = config_.n_head / (ranks_ ? ranks_->size() : 1),
          .head_size = config_.n_embd / config_.n_head,
          .vocabulary = config_.vocab_size,
          .positions = config_.n_positions};
}

Tensor Gpt2::run(const Tensor& tokens, const Tensor& positions, CachedAttention& attention,
                 const Tensor& wanted) const {
  const bool drops = is_training() && config_.embd_pdrop + config_.attn_pdrop + config_.resid_pdrop > 0;
  const SameDraws draws(drops ? ranks_ : nullptr);  // outside of what is divided all ranks drop the same
  Tensor x = dropout(words_.embed(wte, tokens) + wpe(positions), config_.embd_pdrop, is_training());
  for (const Gpt2Block& block : h) x = block.forward(x, attention, &block == &h.back() ? wanted : Tensor());
  return words_.own_logits(lm_head ? &*lm_head : nullptr, wte, ln_f(x));
}

Tensor Gpt2::run(const Tensor& ids) const {
  const Tensor tokens = detail::flat_tokens("Gpt2", ids);
  LOCKSTEP_CHECK(ids.size(1) <= config_.n_positions, "[Gpt2] expected at most ", config_.n_positions,
                 " tokens in a text, got ids ", ids);
  detail::CausalAttention attention(ids.size(0), is_training() ? config_.attn_pdrop : 0);
  return run(tokens, detail::flat_positions(ids), attention, {});
}

Tensor Gpt2::forward(const Tensor& ids) const {
  return words_.whole(run(ids)).reshape({ids.size(0), ids.size(1), config_.vocab_size});
}

Tensor Gpt2::own_logits(const Tensor& ids) const {
  const CallScope scope(*this);
  const Tensor logits = run(ids);
  return logits.reshape({ids.size(0), ids.size(1), logits.size(1)});
}

Tensor Gpt2::decode(const DecodeStep& step) const {
  const CallScope scope(*this);  // all of the call computes with the same elements
  return words_.whole(run(step.tokens, step.positions, *step.attention, step.wanted));
}

std::optional<std::string> Gpt2::name_in_module(const std::string& name) const {
  constexpr std::string_view kPrefix = "transformer.";
  const std::string here = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  const bool is_mask = here.starts_with("h.") && (here.ends_with(".attn.bias") || here.ends_with(".attn.masked_bias"));
  if (is_mask || (here == "lm_head.weight" && !lm_head)) return {};
  return here;
}

}  // namespace lockstep
