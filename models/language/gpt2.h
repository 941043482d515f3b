// GPT-2 (Radford et al., 2019), as transformers publishes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/models/checkpoint/checkpoint.h"
#include "lockstep/models/generation/language_model.h"
#include "lockstep/models/language/conv1d.h"
#include "lockstep/models/language/divided.h"
#include "lockstep/parallel/tensor_parallel/same_draws.h"
#include "lockstep/tensor/nn/norm.h"

namespace lockstep {

// By the names of config.json. The defaults are those of the published 124M parameters.
struct LOCKSTEP_API GptConfig {
  std::int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768;
  int n_layer = 12;
  std::int64_t n_head = 12;
  std::optional<std::int64_t> n_inner{};  // 4 n_embd
  Activation activation = Activation::gelu_tanh;
  double layer_norm_epsilon = 1e-5;
  double embd_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1;  // in training mode
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
  double initializer_range = 0.02;

  // Throw FormatError (file, byte), naming the field, for one that is missing or of another type, and NotSupported,
  // naming field and value, for what Gpt2 does not compute. `file` is the file's name in messages.
  static GptConfig from_file(const std::string& path);
  static GptConfig from_json(const std::string& text, const std::string& file = "config.json");
};

class LOCKSTEP_API Gpt2Attention : public Module<Gpt2Attention> {
 public:
  Gpt2Attention(const GptConfig& config, int layer, FirstWeights first, Communicator* ranks = nullptr);
  // x [N, n_embd] -> what the heads (with ranks: this rank's) give [N, n_embd], which c_proj is still to mix.
  Tensor heads(const Tensor& x, CachedAttention& attention) const;
  void members(Members& m) override { m("c_attn", c_attn), m("c_proj", c_proj); }

  Conv1D c_attn, c_proj;

 private:
  int layer_;
  std::int64_t heads_, head_size_;
  double scale_;
  Communicator* ranks_;
};

class LOCKSTEP_API Gpt2Mlp : public Module<Gpt2Mlp> {
 public:
  Gpt2Mlp(const GptConfig& config, FirstWeights first, Communicator* ranks = nullptr);
  Tensor forward(const Tensor& x) const { return c_proj(c_fc(x)); }
  void members(Members& m) override { m("c_fc", c_fc), m("c_proj", c_proj); }

  Conv1D c_fc, c_proj;
};

class LOCKSTEP_API Gpt2Block : public Module<Gpt2Block> {
 public:
  Gpt2Block(const GptConfig& config, int layer, FirstWeights first, Communicator* ranks = nullptr);
  // x [N, n_embd]; the result has the rows `wanted` alone, where it is defined.
  Tensor forward(const Tensor& x, CachedAttention& attention, const Tensor& wanted) const;
  void members(Members& m) override { m("ln_1", ln_1), m("attn", attn), m("ln_2", ln_2), m("mlp", mlp); }

  LayerNorm ln_1;
  Gpt2Attention attn;
  LayerNorm ln_2;
  Gpt2Mlp mlp;

 private:
  double dropout_;
};

// The members have the names of the published files (wte.weight, h.0.attn.c_attn.weight, …); load_checkpoint passes
// over the prefix "transformer." and the mask buffers of some. With tied embeddings there is one matrix, wte.weight,
// and an lm_head.weight in the file is passed over.
//
// With `ranks` (borrowed) each rank has its share of the heads, of the inner width and of the words, and all compute
// together: see docs/tensor-parallel.md. All ranks make the same calls, with the same arguments, on the communicator's
// device.
class LOCKSTEP_API Gpt2 : public Module<Gpt2>, public LanguageModel, public CheckpointNames {
 public:
  // InvalidArgument for ranks that do not divide n_head or the inner width.
  explicit Gpt2(const GptConfig& config = {}, FirstWeights first = FirstWeights::random, Communicator* ranks = nullptr);

  // ids [B, T] (integers, T at most n_positions) -> logits [B, T, vocab_size]. Each token sees those before it.
  Tensor forward(const Tensor& ids) const;
  // The same for this rank's words alone [B, T, ceil(vocab_size / p)], as vocabulary_parallel_cross_entropy takes them.
  Tensor own_logits(const Tensor& ids) const;
  void members(Members& m) override;

  LanguageModelShape shape() const override;
  Tensor decode(const DecodeStep& step) const override;
  Device device() const override { return wte.weight.device(); }
  DType dtype() const override { return wte.weight.dtype(); }
  std::optional<std::string> name_in_module(const std::string& name) const override;
  const GptConfig& config() const { return config_; }

  Embedding wte, wpe;
  std::vector<Gpt2Block> h;
  LayerNorm ln_f;
  std::optional<Linear> lm_head;  // unless tied

 private:
  Gpt2(const GptConfig& config, FirstWeights first, Communicator* ranks, const SameDraws&);
  // Of the rank's words.
  Tensor run(const Tensor& tokens, const Tensor& positions, CachedAttention& attention, const Tensor& wanted) const;
  Tensor run(const Tensor& ids) const;

  GptConfig config_;
  Communicator* ranks_;
  detail::DividedWords words_;
};

}  // namespace lockstep
