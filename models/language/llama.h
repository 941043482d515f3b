// Llama (Touvron et al., 2023) and those built alike: Llama 2, 3 and 3.1, Qwen2, Mistral without a sliding window.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/models/checkpoint/checkpoint.h"
#include "lockstep/models/generation/language_model.h"
#include "lockstep/models/language/divided.h"
#include "lockstep/models/language/first_weights.h"
#include "lockstep/models/language/rotary.h"
#include "lockstep/parallel/tensor_parallel/same_draws.h"

namespace lockstep {

// By the names of config.json, where it has one. The defaults are those of Llama 2 7B.
struct LOCKSTEP_API LlamaConfig {
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  int num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::optional<std::int64_t> num_key_value_heads{};  // as many as attention heads
  std::optional<std::int64_t> head_dim{};             // hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 4096;
  double rms_norm_eps = 1e-5;
  bool attention_bias = false;  // of queries, keys and values
  bool output_bias = false;     // of what mixes the heads: Llama's attention_bias means it too, Qwen2 has none
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  double partial_rotary_factor = 1;  // of a head: what of it is turned
  RotaryOptions rope{};              // rope_theta; rope_scaling, rope_parameters
  double initializer_range = 0.02;

  std::int64_t key_value_heads() const { return num_key_value_heads.value_or(num_attention_heads); }
  std::int64_t head_size() const { return head_dim.value_or(hidden_size / num_attention_heads); }

  // Of model_type llama, qwen2 or mistral. Throw FormatError (file, byte), naming the field, for one that is missing or
  // of another type, and NotSupported, naming field and value, for what Llama does not compute: other activations, ways
  // of scaling, sliding windows shorter than the texts. `file` is the file's name in messages.
  static LlamaConfig from_file(const std::string& path);
  static LlamaConfig from_json(const std::string& text, const std::string& file = "config.json");
};

// x / sqrt(mean(x^2) + eps) * weight, over the last dimension. In 16 bits the quotient is rounded before it is
// multiplied, as transformers does, unlike RMSNorm.
class LOCKSTEP_API LlamaNorm : public Module<LlamaNorm> {
 public:
  LlamaNorm(std::int64_t size, double eps);
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight); }

  Parameter weight;

 private:
  double eps_;
};

class LOCKSTEP_API LlamaAttention : public Module<LlamaAttention> {
 public:
  LlamaAttention(const LlamaConfig& config, int layer, FirstWeights first, Communicator* ranks = nullptr);
  // x [N, hidden] -> what the heads (with ranks: this rank's) give [N, heads * head size], for mixed.
  Tensor heads(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention) const;
  // By o_proj: [N, hidden], of all ranks' heads.
  Tensor mixed(const Tensor& heads) const;
  void members(Members& m) override;

  Linear q_proj, k_proj, v_proj, o_proj;

 private:
  int layer_;
  std::int64_t query_heads_, key_value_heads_, head_size_;
  Communicator* ranks_;
};

// down(silu(gate(x)) * up(x))
class LOCKSTEP_API LlamaMlp : public Module<LlamaMlp> {
 public:
  LlamaMlp(const LlamaConfig& config, FirstWeights first, Communicator* ranks = nullptr);
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override;

  Linear gate_proj, up_proj, down_proj;

 private:
  Communicator* ranks_;
};

class LOCKSTEP_API LlamaLayer : public Module<LlamaLayer> {
 public:
  LlamaLayer(const LlamaConfig& config, int layer, FirstWeights first, Communicator* ranks = nullptr);
  // x [N, hidden]; the result has the rows `wanted` alone, where it is defined.
  Tensor forward(const Tensor& x, const RotaryAngles& angles, CachedAttention& attention, const Tensor& wanted) const;
  void members(Members& m) override;

  LlamaNorm input_layernorm;
  LlamaAttention self_attn;
  LlamaNorm post_attention_layernorm;
  LlamaMlp mlp;
};

// What the files have under "model.": all but the head.
class LOCKSTEP_API LlamaBody : public Module<LlamaBody> {
 public:
  LlamaBody(const LlamaConfig& config, FirstWeights first, Communicator* ranks = nullptr);
  void members(Members& m) override;

  Embedding embed_tokens;
  std::vector<LlamaLayer> layers;
  LlamaNorm norm;
};

// The members have the names of the published files (model.layers.0.self_attn.q_proj.weight, …). With tied embeddings
// there is one matrix, model.embed_tokens.weight, and an lm_head.weight in the file is passed over.
//
// With `ranks` (borrowed) each rank has its share of the heads, of the intermediate size and of the words, and all
// compute together: see docs/tensor-parallel.md. All ranks make the same calls, with the same arguments, on the
// communicator's device.
class LOCKSTEP_API Llama : public Module<Llama>, public LanguageModel, public CheckpointNames {
 public:
  // InvalidArgument for ranks that do not divide the heads, those of keys and values, or the intermediate size.
  explicit Llama(const LlamaConfig& config, FirstWeights first = FirstWeights::random, Communicator* ranks = nullptr);

  // ids [B, T] (integers) -> logits [B, T, vocab_size]. Each token sees those before it.
  Tensor forward(const Tensor& ids) const;
  // The same for this rank's words alone [B, T, ceil(vocab_size / p)], as vocabulary_parallel_cross_entropy takes them.
  Tensor own_logits(const Tensor& ids) const;
  void members(Members& m) override { m("model", model), m("lm_head", lm_head); }

  LanguageModelShape shape() const override;
  Tensor decode(const DecodeStep& step) const override;
  Device device() const override { return model.embed_tokens.weight.device(); }
  DType dtype() const override { return model.embed_tokens.weight.dtype(); }
  std::optional<std::string> name_in_module(const std::string& name) const override;
  const LlamaConfig& config() const { return config_; }

  LlamaBody model;
  std::optional<Linear> lm_head;  // unless tied

 private:
  Llama(const LlamaConfig& config, FirstWeights first, Communicator* ranks, const SameDraws&);
  // Of the rank's words.
  Tensor run(const Tensor& tokens, const Tensor& positions, CachedAttention& attention, const Tensor& wanted) const;
  Tensor run(const Tensor& ids) const;

  LlamaConfig config_;
  RotaryEmbedding rotary_;
  Communicator* ranks_;
  detail::DividedWords words_;
};

}  // namespace lockstep
