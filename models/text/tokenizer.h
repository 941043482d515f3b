// Text to tokens and back, as the tokenizer.json of a published model says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

namespace text {
struct TokenizerParts;
}

struct EncodeOptions {
  bool add_special = true;  // the tokens that the file puts around a text, such as the one that begins a sequence
  bool parse_special =
      true;  // false: special tokens in the text are encoded as text. For what users write: a prompt with
             // <|endoftext|> in it then says so, and ends nothing.
};

struct DecodeOptions {
  bool skip_special = true;  // leaves special tokens out
};

// Byte-pair encoding with the components of the files of GPT-2, Llama 2, Llama 3 and Qwen2, with the results of Hugging
// Face's `tokenizers`. A handle: copies share what was read. It does not change, so that many threads may use it at
// once.
class LOCKSTEP_API Tokenizer {
 public:
  // Of a tokenizer.json. Throws FormatError for a file that cannot be read or is none, NotSupported for one with
  // components that are not known here; both name the field. Nothing is guessed.
  static Tokenizer load(const std::string& path);
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");  // `name` in messages

  // What is not UTF-8 in the text counts as U+FFFD, as Python's errors="replace" has it. Takes O(n log n) for n bytes.
  // Throws InvalidArgument from 2^31 bytes on.
  std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Ids without a token are left out, since models may have more logits than there are tokens. The text is UTF-8:
  // U+FFFD stands for bytes that make no character. For tokens that come one by one there is StreamDecoder.
  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options = {}) const;

  // The largest id and one: a model has this many logits, or more.
  std::int64_t size() const;
  std::optional<std::int64_t> id_of(std::string_view token) const;  // as the file spells it
  // As the file spells it, and the bytes that it adds to a text, perhaps a part of a character. Empty for ids without a
  // token. The views live as long as a copy of the tokenizer does.
  std::string_view token_of(std::int64_t id) const;
  std::string_view bytes_of(std::int64_t id) const;
  bool is_special(std::int64_t id) const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const text::TokenizerParts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const text::TokenizerParts> parts_;
};

}  // namespace lockstep
