// GPT-2's config.json.
#include "lockstep/models/checkpoint/json_file.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/quantized_checkpoint.h"

namespace lockstep {
namespace {

Activation activation_of(const detail::JsonFile& json) {
  const std::string name = json.text("activation_function", "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  json.refuse("activation_function", "Gpt2 has gelu_new, gelu_pytorch_tanh, gelu and relu");
}

GptConfig gpt_config_of(const detail::JsonFile& json) {
  if (const std::string type = json.text("model_type", "gpt2"); type != "gpt2")
    json.refuse("model_type", "expected gpt2");
  detail::quantized_groups(json);  // refuses the formats of others
  if (json.boolean("add_cross_attention", false)) json.refuse("add_cross_attention", "Gpt2 attends to its own text");
  GptConfig c;
  c.vocab_size = json.size("vocab_size");
  c.n_positions = json.size("n_positions");
  c.n_embd = json.size("n_embd");
  c.n_layer = static_cast<int>(json.size("n_layer", 1, 100'000));
  c.n_head = json.size("n_head");
  if (json.has("n_inner")) c.n_inner = json.size("n_inner");
  if (c.n_embd % c.n_head != 0) json.fail("n_head", cat("expected a divisor of n_embd ", c.n_embd, ", got ", c.n_head));
  c.activation = activation_of(json);
  c.layer_norm_epsilon = json.number("layer_norm_epsilon");
  c.embd_pdrop = json.share("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = json.share("attn_pdrop", c.attn_pdrop);
  c.resid_pdrop = json.share("resid_pdrop", c.resid_pdrop);
  c.scale_attn_weights = json.boolean("scale_attn_weights", true);
  c.scale_attn_by_inverse_layer_idx = json.boolean("scale_attn_by_inverse_layer_idx", false);
  c.tie_word_embeddings = json.boolean("tie_word_embeddings", true);
  c.initializer_range = json.number("initializer_range", c.initializer_range);
  return c;
}

}  // namespace

GptConfig GptConfig::from_file(const std::string& path) { return gpt_config_of(detail::JsonFile::read(path)); }
GptConfig GptConfig::from_json(const std::string& text, const std::string& file) {
  return gpt_config_of(detail::JsonFile::parse(text, file));
}

}  // namespace lockstep
