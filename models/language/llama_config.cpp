// The config.json of Llama and those built alike.
#include <algorithm>

#include "lockstep/models/checkpoint/json_file.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/quantized_checkpoint.h"

namespace lockstep {
namespace {

using detail::JsonFile;

double above_zero(const JsonFile& json, const std::string& field, double otherwise) {
  const double value = json.number(field, otherwise);
  if (!(value > 0)) json.fail(field, cat("expected a number above 0, got ", value));
  return value;
}

// The way of scaling that an object of rope_scaling or rope_parameters says.
void read_scaling(const JsonFile& json, std::int64_t positions, RotaryOptions& rope) {
  const std::string field = json.has("rope_type") || !json.has("type") ? "rope_type" : "type";  // older files: type
  const std::string type = json.text(field, "default");
  if (type == "default") return;
  const auto trained = [&] {  // as transformers: without it the text that the model is for
    return json.has("original_max_position_embeddings") ? json.size("original_max_position_embeddings") : positions;
  };
  rope.factor = json.number("factor");
  if (!(rope.factor > 0)) json.fail("factor", cat("expected a number above 0, got ", rope.factor));
  if (type == "linear") {
    rope.scaling = RotaryScaling::linear;
  } else if (type == "llama3") {
    rope.scaling = RotaryScaling::llama3;
    rope.low_freq_factor = json.number("low_freq_factor");
    rope.high_freq_factor = json.number("high_freq_factor");
    if (!(rope.low_freq_factor > 0)) json.fail("low_freq_factor", "expected a number above 0");
    if (!(rope.high_freq_factor > rope.low_freq_factor))
      json.fail("high_freq_factor", "expected more than low_freq_factor");
    rope.original_positions = trained();
  } else if (type == "yarn") {
    for (const char* other : {"mscale", "mscale_all_dim"})
      if (json.has(other)) json.refuse(other, "of yarn only attention_factor is known");
    rope.scaling = RotaryScaling::yarn;
    rope.original_positions = trained();
    rope.beta_fast = above_zero(json, "beta_fast", rope.beta_fast);
    rope.beta_slow = above_zero(json, "beta_slow", rope.beta_slow);
    if (json.has("attention_factor")) rope.attention_factor = json.number("attention_factor");
    rope.truncate = json.boolean("truncate", true);
  } else {
    json.refuse(field, "Llama has default, linear, llama3 and yarn");
  }
}

void read_rope(const JsonFile& json, LlamaConfig& c) {
  // Newer files have all of it in one object.
  const std::optional<JsonFile> parameters = json.object("rope_parameters"), scaling = json.object("rope_scaling");
  const JsonFile& of_theta = parameters && parameters->has("rope_theta") ? *parameters : json;
  c.rope.theta = of_theta.number("rope_theta", c.rope.theta);
  if (!(c.rope.theta > 1)) of_theta.fail("rope_theta", cat("expected a number above 1, got ", c.rope.theta));
  const JsonFile& of_part = parameters && parameters->has("partial_rotary_factor") ? *parameters : json;
  c.partial_rotary_factor = of_part.share("partial_rotary_factor", 1);
  const auto turned = static_cast<std::int64_t>(c.partial_rotary_factor * static_cast<double>(c.head_size()));
  if (turned < 2 || turned % 2 != 0)
    of_part.fail("partial_rotary_factor", cat("expected an even number of elements to turn, got ", turned));
  if (parameters)
    read_scaling(*parameters, c.max_position_embeddings, c.rope);
  else if (scaling)
    read_scaling(*scaling, c.max_position_embeddings, c.rope);
}

// A window that is as long as the longest text hides nothing.
void refuse_windows(const JsonFile& json, const LlamaConfig& c, bool in_use) {
  if (!in_use || !json.has("sliding_window")) return;
  if (json.integer("sliding_window") < c.max_position_embeddings)
    json.refuse("sliding_window",
                cat("windows shorter than max_position_embeddings ", c.max_position_embeddings, " are not computed"));
}

LlamaConfig llama_config_of(const JsonFile& json) {
  const std::string type = json.text("model_type");
  if (type != "llama" && type != "qwen2" && type != "mistral")
    json.refuse("model_type", "Llama has llama, qwen2, mistral");
  detail::quantized_groups(json);  // refuses the formats of others
  if (json.text("hidden_act", "silu") != "silu") json.refuse("hidden_act", "Llama has silu");
  LlamaConfig c;
  c.vocab_size = json.size("vocab_size");
  c.hidden_size = json.size("hidden_size");
  c.intermediate_size = json.size("intermediate_size");
  c.num_hidden_layers = static_cast<int>(json.size("num_hidden_layers", 1, 100'000));
  c.num_attention_heads = json.size("num_attention_heads");
  if (json.has("num_key_value_heads")) c.num_key_value_heads = json.size("num_key_value_heads");
  if (c.num_attention_heads % c.key_value_heads() != 0)
    json.fail("num_key_value_heads",
              cat("expected a divisor of num_attention_heads ", c.num_attention_heads, ", got ", c.key_value_heads()));
  if (json.has("head_dim"))
    c.head_dim = json.size("head_dim");
  else if (c.hidden_size % c.num_attention_heads != 0)
    json.fail("num_attention_heads",
              cat("expected a divisor of hidden_size ", c.hidden_size, ", or a head_dim, got ", c.num_attention_heads));
  c.max_position_embeddings = json.size("max_position_embeddings");
  c.rms_norm_eps = json.number("rms_norm_eps");
  c.attention_bias = type == "qwen2" || json.boolean("attention_bias", false);
  c.output_bias = type != "qwen2" && c.attention_bias;
  c.mlp_bias = json.boolean("mlp_bias", false);
  c.tie_word_embeddings = json.boolean("tie_word_embeddings", false);
  c.initializer_range = json.number("initializer_range", c.initializer_range);
  read_rope(json, c);
  const std::vector<std::string> kinds = json.texts("layer_types");
  const bool windows = std::find(kinds.begin(), kinds.end(), "sliding_attention") != kinds.end();
  // Qwen2 names a window that it has no use for.
  refuse_windows(json, c, type == "qwen2" ? windows || json.boolean("use_sliding_window", false) : true);
  return c;
}

}  // namespace

LlamaConfig LlamaConfig::from_file(const std::string& path) { return llama_config_of(JsonFile::read(path)); }
LlamaConfig LlamaConfig::from_json(const std::string& text, const std::string& file) {
  return llama_config_of(JsonFile::parse(text, file));
}

}  // namespace lockstep
