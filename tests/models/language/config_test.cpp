// config.json, old and new.
#include <nlohmann/json.hpp>

#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

json gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 64}, {"n_positions", 48},         {"n_embd", 16},
          {"n_layer", 2},         {"n_head", 4},      {"layer_norm_epsilon", 1e-5}};
}

json llama() {
  return {{"model_type", "llama"},          {"vocab_size", 64},       {"hidden_size", 16},
          {"intermediate_size", 40},        {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"max_position_embeddings", 128}, {"rms_norm_eps", 1e-6}};
}

json with(json object, const std::string& field, const json& value) {
  object[field] = value;
  return object;
}

GptConfig read_gpt2(const json& object) { return GptConfig::from_json(object.dump()); }
LlamaConfig read_llama(const json& object) { return LlamaConfig::from_json(object.dump(), "folder/config.json"); }

}  // namespace

TEST_CASE("GPT-2's config has the published defaults and fields") {
  const GptConfig c = read_gpt2(gpt2());
  CHECK((c.vocab_size == 64 && c.n_positions == 48 && c.n_embd == 16 && c.n_layer == 2 && c.n_head == 4));
  CHECK((!c.n_inner && c.tie_word_embeddings && c.activation == Activation::gelu_tanh && c.layer_norm_epsilon == 1e-5));
  CHECK((c.embd_pdrop == 0.1 && c.attn_pdrop == 0.1 && c.resid_pdrop == 0.1));
  CHECK((c.scale_attn_weights && !c.scale_attn_by_inverse_layer_idx));
  CHECK(read_gpt2(with(gpt2(), "n_inner", 40)).n_inner == 40);
  CHECK_FALSE(read_gpt2(with(gpt2(), "n_inner", nullptr)).n_inner);
  CHECK_FALSE(read_gpt2(with(gpt2(), "tie_word_embeddings", false)).tie_word_embeddings);
  CHECK(read_gpt2(with(gpt2(), "activation_function", "relu")).activation == Activation::relu);
  CHECK(read_gpt2(with(gpt2(), "activation_function", "gelu")).activation == Activation::gelu);
  CHECK(read_gpt2(with(gpt2(), "embd_pdrop", 0)).embd_pdrop == 0);
  const GptConfig published;
  CHECK((published.vocab_size == 50257 && published.n_embd == 768 && published.n_layer == 12));
}

TEST_CASE("Llama's config has the published defaults and fields") {
  const LlamaConfig c = read_llama(llama());
  CHECK((c.vocab_size == 64 && c.hidden_size == 16 && c.intermediate_size == 40 && c.num_hidden_layers == 2));
  CHECK((c.key_value_heads() == 4 && c.head_size() == 4 && c.max_position_embeddings == 128 && c.rms_norm_eps == 1e-6));
  CHECK((!c.attention_bias && !c.output_bias && !c.mlp_bias && !c.tie_word_embeddings));
  CHECK((c.rope.theta == 10000 && c.rope.scaling == RotaryScaling::none && c.partial_rotary_factor == 1));
  CHECK(read_llama(with(llama(), "num_key_value_heads", 2)).key_value_heads() == 2);
  CHECK(read_llama(with(llama(), "head_dim", 8)).head_size() == 8);
  CHECK(read_llama(with(llama(), "tie_word_embeddings", true)).tie_word_embeddings);
  CHECK(read_llama(with(llama(), "rope_theta", 5e5)).rope.theta == 5e5);
  CHECK(read_llama(with(llama(), "partial_rotary_factor", 0.5)).partial_rotary_factor == 0.5);
  const LlamaConfig biased = read_llama(with(with(llama(), "attention_bias", true), "mlp_bias", true));
  CHECK((biased.attention_bias && biased.output_bias && biased.mlp_bias));
  const LlamaConfig qwen = read_llama(with(llama(), "model_type", "qwen2"));
  CHECK((qwen.attention_bias && !qwen.output_bias));
}

TEST_CASE("positions are scaled as old and new configs say") {
  const json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 2.0},
                    {"high_freq_factor", 3},
                    {"original_max_position_embeddings", 32}};
  for (const LlamaConfig& c : {read_llama(with(with(llama(), "rope_scaling", llama3), "rope_theta", 5e5)),
                               read_llama(with(llama(), "rope_parameters", with(llama3, "rope_theta", 5e5)))}) {
    CHECK((c.rope.scaling == RotaryScaling::llama3 && c.rope.theta == 5e5 && c.rope.factor == 8));
    CHECK((c.rope.low_freq_factor == 2 && c.rope.high_freq_factor == 3 && c.rope.original_positions == 32));
  }
  const json linear{{"type", "linear"}, {"factor", 2.0}};
  const LlamaConfig c = read_llama(with(llama(), "rope_scaling", linear));
  CHECK((c.rope.scaling == RotaryScaling::linear && c.rope.factor == 2));
  const json yarn{{"type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16}, {"attention_factor", 1.5}, {"truncate", false}};
  const LlamaConfig y = read_llama(with(llama(), "rope_scaling", yarn));
  CHECK(
      (y.rope.scaling == RotaryScaling::yarn && y.rope.factor == 4 && y.rope.beta_fast == 16 && y.rope.beta_slow == 1));
  CHECK((y.rope.attention_factor == 1.5 && !y.rope.truncate && y.rope.original_positions == 128));
  CHECK(read_llama(with(llama(), "rope_scaling", json{{"rope_type", "default"}})).rope.scaling == RotaryScaling::none);
  CHECK(read_llama(with(llama(), "rope_parameters", json{{"partial_rotary_factor", 0.5}})).partial_rotary_factor ==
        0.5);
}

TEST_CASE("a missing or broken field is named with its file") {
  for (const char* field : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon"}) {
    json object = gpt2();
    object.erase(field);
    CHECK_THROWS_AS(read_gpt2(object), FormatError);
    CHECK_THROWS_WITH(read_gpt2(object), Contains(std::string("config.json")) && Contains(cat('"', field, '"')));
  }
  for (const char* field : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "max_position_embeddings", "rms_norm_eps"}) {
    json object = llama();
    object.erase(field);
    CHECK_THROWS_AS(read_llama(object), FormatError);
    CHECK_THROWS_WITH(read_llama(object), Contains("folder/config.json") && Contains(cat('"', field, '"')));
  }
  const auto check = [](const json& object, const std::string& words) {
    CAPTURE(object.dump());
    CHECK_THROWS_AS(read_llama(object), FormatError);
    CHECK_THROWS_WITH(read_llama(object), Contains(words));
  };
  check(with(llama(), "vocab_size", "many"), "\"vocab_size\": expected an integer, got string");
  check(with(llama(), "vocab_size", 1.5), "expected an integer");
  check(with(llama(), "vocab_size", 0), "expected a number from 1");
  check(with(llama(), "vocab_size", 1e300), "expected an integer");
  check(with(llama(), "vocab_size", 18446744073709551615u), "expected an integer");
  check(with(llama(), "hidden_act", 3), "\"hidden_act\": expected a text");
  check(with(llama(), "mlp_bias", 1), "\"mlp_bias\": expected true or false");
  check(with(llama(), "rms_norm_eps", "small"), "\"rms_norm_eps\": expected a number");
  check(with(llama(), "num_key_value_heads", 3), "expected a divisor of num_attention_heads 4, got 3");
  check(with(llama(), "hidden_size", 18), "expected a divisor of hidden_size 18");
  check(with(llama(), "rope_theta", 0), "\"rope_theta\": expected a number above 1");
  check(with(llama(), "partial_rotary_factor", 0.1), "expected an even number of elements");
  check(with(llama(), "rope_scaling", 3), "\"rope_scaling\": expected an object");
  check(with(llama(), "rope_scaling", json{{"type", "linear"}}), "\"rope_scaling.factor\": expected a value");
  check(with(llama(), "rope_scaling", json{{"type", "linear"}, {"factor", -1}}), "\"rope_scaling.factor\"");
  check(with(llama(), "layer_types", json{1}), "\"layer_types\": expected texts");
  CHECK_THROWS_AS(LlamaConfig::from_json("[1]"), FormatError);
  CHECK_THROWS_AS(LlamaConfig::from_json("{"), FormatError);
  CHECK_THROWS_AS(LlamaConfig::from_json(R"({"rms_norm_eps": 1e999})"), FormatError);
  // Depths that a call for each would not survive.
  const std::string deep(1'000'000, '[');
  CHECK_THROWS_AS(LlamaConfig::from_json(deep), FormatError);
  CHECK_THROWS_AS(LlamaConfig::from_json("{\"a\": " + deep + std::string(1'000'000, ']') + "}"), FormatError);
  CHECK_THROWS_WITH(GptConfig::from_file("no/such/file"), Contains("no/such/file"));
  try {
    read_llama(with(llama(), "vocab_size", true));
  } catch (const FormatError& error) {
    CHECK(with(llama(), "vocab_size", true).dump().substr(error.offset, 12) == "\"vocab_size\"");
  }
}

TEST_CASE("what is not computed is refused, with field and value") {
  const auto check = [](const json& object, const std::string& field, const std::string& value) {
    CAPTURE(object.dump());
    const bool is_gpt2 = object.at("model_type") == "gpt2";
    const auto read = [&] { is_gpt2 ? void(read_gpt2(object)) : void(read_llama(object)); };
    CHECK_THROWS_AS(read(), NotSupported);
    CHECK_THROWS_WITH(read(), Contains(cat("field \"", field, "\" is ", value)));
  };
  check(with(gpt2(), "activation_function", "silu"), "activation_function", "\"silu\"");
  check(with(gpt2(), "add_cross_attention", true), "add_cross_attention", "true");
  check(with(gpt2(), "quantization_config", json{{"bits", 4}}), "quantization_config", "an object");
  check(with(llama(), "model_type", "gemma"), "model_type", "\"gemma\"");
  check(with(llama(), "hidden_act", "gelu"), "hidden_act", "\"gelu\"");
  check(with(llama(), "quantization_config", json{{"bits", 4}}), "quantization_config", "an object");
  for (const char* type : {"dynamic", "longrope", "su"}) {
    check(with(llama(), "rope_scaling", json{{"type", type}, {"factor", 2}}), "rope_scaling.type", cat('"', type, '"'));
    check(with(llama(), "rope_parameters", json{{"rope_type", type}, {"factor", 2}}), "rope_parameters.rope_type",
          cat('"', type, '"'));
  }
  check(with(llama(), "rope_scaling", json{{"type", "yarn"}, {"factor", 2}, {"mscale", 1}}), "rope_scaling.mscale",
        "1");
  // Windows that would hide something.
  const json mistral = with(llama(), "model_type", "mistral"), qwen = with(llama(), "model_type", "qwen2");
  check(with(mistral, "sliding_window", 64), "sliding_window", "64");
  check(with(with(qwen, "sliding_window", 64), "use_sliding_window", true), "sliding_window", "64");
  check(with(with(qwen, "sliding_window", 64), "layer_types", json{"full_attention", "sliding_attention"}),
        "sliding_window", "64");
  CHECK_NOTHROW(read_llama(with(mistral, "sliding_window", nullptr)));
  CHECK_NOTHROW(read_llama(with(mistral, "sliding_window", 128)));
  CHECK_NOTHROW(read_llama(with(qwen, "sliding_window", 64)));
  const TemporaryFolder folder;
  write_bytes(folder / "config.json", R"({"model_type": "t5"})");
  CHECK_THROWS_AS(load_language_model(folder.path().string()), NotSupported);
  CHECK_THROWS_WITH(load_language_model(folder.path().string()), Contains("field \"model_type\" is \"t5\""));
}

}  // namespace lockstep::test
