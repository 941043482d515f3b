// Text behind a Generator: a model of characters, or a published language model.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support/cached_text_model.h"
#include "http.h"
#include "lockstep/models/generation/generator.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/text/stream_decoder.h"
#include "options.h"

namespace example {

// A model and how its tokens are text.
struct TextBackend {
  std::string name;
  std::shared_ptr<const lockstep::LanguageModel> model;
  lockstep::Tokenizer tokenizer;
  std::vector<std::int64_t> end_tokens;  // which end a text, and are no part of it
  std::string alphabet;                  // the only characters that there are tokens for; empty: all
};

inline TextBackend load_characters(const std::string& path, lockstep::Device device) {
  const auto model = load_text_model(path, device);
  return {"train_text", model, character_tokenizer(model->characters()), {}, model->characters()};
}

// A folder as models are published.
inline TextBackend load_folder(const std::string& folder, lockstep::Device device) {
  const std::filesystem::path path(folder);
  std::vector<std::int64_t> ends;
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::ifstream file(path / name);
    const json config = json::parse(file, nullptr, false);
    const json end = config.is_object() ? config.value("eos_token_id", json()) : json();
    if (end.is_number_integer()) ends.push_back(end.get<std::int64_t>());
    for (const json& one : end.is_array() ? end : json::array())
      if (one.is_number_integer()) ends.push_back(one.get<std::int64_t>());
    if (!ends.empty()) break;
  }
  std::filesystem::path clean = std::filesystem::absolute(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();  // of a name that ends in /
  return {clean.filename().string(), lockstep::load_language_model(folder, {.device = device}),
          lockstep::Tokenizer::load((path / "tokenizer.json").string()), std::move(ends), ""};
}

class TextService {
 public:
  explicit TextService(const ServeOptions& options)
      : backend_(options.model.empty() ? load_characters(options.text, lockstep::Device::parse(options.device))
                                       : load_folder(options.model, lockstep::Device::parse(options.device))) {
    constexpr std::int64_t kPage = 16;
    const std::int64_t positions = backend_.model->shape().positions;
    context_ = positions > 0 ? std::min(positions, options.context) : options.context;
    lockstep::GeneratorOptions generator;
    generator.batch.max_sequences = options.sequences;
    generator.batch.cache = {.pages = options.sequences * ((context_ + kPage - 1) / kPage), .page_size = kPage};
    generator.batch.max_tokens = std::max<std::int64_t>(512, options.sequences);
    generator.max_queued = static_cast<std::size_t>(options.queue);
    generator.when_full = lockstep::WhenFull::refuse;
    generator.timeout = lockstep::Milliseconds(options.request_seconds * 1000);
    generator_ = std::make_unique<lockstep::Generator>(backend_.model, generator);
  }

  const TextBackend& backend() const { return backend_; }
  std::int64_t context() const { return context_; }  // tokens of prompt and answer together

  // Throws HttpError for what the model has no tokens for.
  std::vector<std::int64_t> encode(const std::string& text) const {
    const std::string& alphabet = backend_.alphabet;
    // Megabytes are not worth being looked at: no token has so many bytes.
    if (text.size() > static_cast<std::size_t>(context_) * (alphabet.empty() ? 256 : 1)) too_long("more");
    const std::size_t unknown = alphabet.empty() ? std::string::npos : text.find_first_not_of(alphabet);
    if (unknown != std::string::npos)
      throw HttpError(400,
                      lockstep::cat("prompt: the model was trained on a text without the character ",
                                    to_text(json(character_at(text, unknown))), ", which is at byte ", unknown),
                      "prompt", "unknown_character");
    return backend_.tokenizer.encode(text, {.parse_special = false});
  }
  lockstep::Generation submit(std::vector<std::int64_t> prompt, lockstep::GenerateOptions options) const {
    const auto tokens = static_cast<std::int64_t>(prompt.size());
    if (tokens == 0) throw HttpError(400, "prompt: expected at least one token", "prompt", "invalid_value");
    if (tokens >= context_) too_long(std::to_string(tokens));
    options.stop_tokens = backend_.end_tokens;
    options.max_new_tokens = std::min(options.max_new_tokens, context_ - tokens);
    return generator_->submit(std::move(prompt), std::move(options));
  }

  std::string metrics() const { return lockstep::to_prometheus(generator_->stats(), backend_.name); }
  void close() { generator_->close(); }

 private:
  [[noreturn]] void too_long(const std::string& tokens) const {
    throw HttpError(400,
                    lockstep::cat("This model's maximum context length is ", context_, " tokens, the prompt has ",
                                  tokens, " and leaves none for an answer"),
                    "prompt", "context_length_exceeded");
  }
  // The bytes of UTF-8 from here to the next character.
  static std::string character_at(const std::string& text, std::size_t at) {
    std::size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    return text.substr(at, end - at);
  }

  TextBackend backend_;
  std::int64_t context_ = 0;
  std::unique_ptr<lockstep::Generator> generator_;
};

}  // namespace example
