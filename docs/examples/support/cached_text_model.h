// The model of train_text, as it writes text: with the keys and values of earlier characters kept.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/models/generation/language_model.h"
#include "lockstep/models/text/tokenizer.h"
#include "text_model.h"

namespace example {

// What Gpt computes, token by token.
class CachedTextModel : public lockstep::LanguageModel {
 public:
  CachedTextModel(Gpt net, const TextOptions& options, std::string characters)
      : net_(std::move(net)), options_(options), characters_(std::move(characters)) {}

  lockstep::LanguageModelShape shape() const override {
    return {.layers = static_cast<int>(options_.layers),
            .heads = options_.heads,
            .head_size = options_.width / options_.heads,
            .vocabulary = static_cast<std::int64_t>(characters_.size()),
            .positions = options_.context};
  }
  lockstep::Device device() const override { return net_.tokens.weight.device(); }
  lockstep::DType dtype() const override { return net_.tokens.weight.dtype(); }

  lockstep::Tensor decode(const lockstep::DecodeStep& step) const override {
    using lockstep::Tensor;
    const std::int64_t rows = step.tokens.size(0), size = options_.width / options_.heads;
    Tensor x = net_.tokens(step.tokens) + net_.positions(step.positions);
    int number = 0;
    for (const lockstep::TransformerEncoderLayer& layer : net_.blocks.layers) {
      const lockstep::MultiheadAttention& attention = layer.self_attn;
      const Tensor joined =
          lockstep::linear(layer.norm1(x), attention.in_proj_weight.on(device()), attention.in_proj_bias.on(device()));
      const auto part = [&](std::int64_t which) {
        return joined.narrow(1, which * options_.width, options_.width).reshape({rows, options_.heads, size});
      };
      const Tensor seen = step.attention->attend(number++, part(0), part(1), part(2));
      x = x + attention.out_proj(seen.reshape({rows, options_.width}));
      x = x + layer.linear2(lockstep::gelu(layer.linear1(layer.norm2(x))));
    }
    const Tensor last = (*net_.blocks.norm)(lockstep::index_select(x, 0, step.wanted));
    return lockstep::linear(last, net_.tokens.weight.on(device()));
  }

  const Gpt& net() const { return net_; }
  const TextOptions& options() const { return options_; }
  const std::string& characters() const { return characters_; }  // by their tokens

 private:
  Gpt net_;
  TextOptions options_;
  std::string characters_;
};

// From a file that train_text --save wrote. Throws UsageError for another one, and what load_safetensors throws.
inline std::shared_ptr<const CachedTextModel> load_text_model(const std::string& path, lockstep::Device device) {
  using lockstep::cat;
  const lockstep::Safetensors file = lockstep::load_safetensors(path);
  const auto text = [&](const char* name) {
    const auto found = file.metadata.find(name);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (text("model") != "train_text")
    throw UsageError(cat("'", path, "': expected a file that train_text --save wrote, its metadata say model '",
                         text("model"), "'"));
  const auto number = [&](const char* name) {
    std::int64_t value = 0;
    std::istringstream in(text(name));
    if (!(in >> value) || value < 1 || value > 1'000'000)
      throw UsageError(cat("'", path, "': expected a number as ", name, ", got '", text(name), "'"));
    return value;
  };
  TextOptions options;
  options.layers = number("layers"), options.heads = number("heads");
  options.width = number("width"), options.context = number("context");
  std::string characters;
  std::istringstream list(text("characters"));
  for (int byte = 0; list >> byte;) characters += static_cast<char>(byte);
  if (characters.empty() || options.width % options.heads != 0)
    throw UsageError(cat("'", path, "': expected characters, and a width that is a multiple of the heads"));
  Gpt net(static_cast<std::int64_t>(characters.size()), options);
  std::vector<lockstep::NamedTensor> parameters;
  for (const lockstep::NamedTensor& named : file.tensors)
    if (named.name.starts_with("model.")) parameters.push_back({named.name.substr(6), named.tensor});
  net.load_state_dict(parameters);
  net.to(device);
  net.eval();
  return std::make_shared<const CachedTextModel>(std::move(net), options, std::move(characters));
}

// Characters as a tokenizer: byte-pair encoding without pairs, in the notation of GPT-2's files, where bytes that
// cannot be printed stand as characters from U+0100 on.
inline lockstep::Tokenizer character_tokenizer(const std::string& characters) {
  std::string vocabulary;
  for (std::size_t token = 0; token < characters.size(); ++token) {
    const unsigned wanted = static_cast<unsigned char>(characters[token]);
    const auto printed = [](unsigned byte) {
      return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    };
    unsigned code = wanted;
    if (!printed(wanted)) {
      code = 256;
      for (unsigned byte = 0; byte < wanted; ++byte) code += !printed(byte);
    }
    char escaped[16];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
    vocabulary += lockstep::cat(token > 0 ? "," : "", "\"", escaped, "\":", token);
  }
  return lockstep::Tokenizer::from_json(
      lockstep::cat(R"({"normalizer":null,"post_processor":null,"added_tokens":[],)"
                    R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},)"
                    R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","merges":[],"vocab":{)",
                    vocabulary, "}}}"),
      "characters");
}

}  // namespace example
