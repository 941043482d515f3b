#include "lockstep/models/text/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "lockstep/models/text/byte_level.h"
#include "lockstep/models/text/tokenizer_parts.h"
#include "lockstep/models/text/unicode.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep {
namespace text {
namespace {

// As what is encoded has them.
std::vector<std::string> texts_of(const TokenizerFile& file) {
  std::vector<std::string> texts = file.vocabulary;
  if (file.byte_level)
    for (std::string& text : texts) text = bytes_of_alphabet(text).value_or("");
  return texts;
}

// Of strings that Decoder::single_byte stands for: a character, or U+FFFD for every one of them.
void append_run(std::string& out, std::string& run) {
  if (is_utf8(run)) {
    out += run;
  } else {
    for (std::size_t i = 0; i < run.size(); ++i) append_utf8(out, 0xFFFD);
  }
  run.clear();
}

}  // namespace

TokenizerParts::TokenizerParts(TokenizerFile file)
    : tokens(file.vocabulary.size()),
      normalizer(std::move(file.normalizer)),
      pre_tokenizer(std::move(file.pre_tokenizer)),
      model(texts_of(file), file.rules, file.options),
      prefix(std::move(file.prefix)),
      suffix(std::move(file.suffix)),
      decoder(std::move(file.decoder)) {
  for (std::size_t id = 0; id < tokens.size(); ++id)
    tokens[id].name = tokens[id].shown = std::move(file.vocabulary[id]);
  for (const AddedToken& token : file.added) {
    if (std::size_t(token.id) >= tokens.size()) tokens.resize(std::size_t(token.id) + 1);
    tokens[std::size_t(token.id)].name = token.content;
    tokens[std::size_t(token.id)].shown = token.pattern;
    (token.normalized ? added_normalized : added).add(token);
    tokens[std::size_t(token.id)].special = token.special;
  }
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    Token& token = tokens[id];
    if (token.name.empty()) continue;
    ids.emplace(token.name, id);
    token.text = token_text(decoder, token.shown, false);
  }
}

const TokenizerParts::Token* TokenizerParts::token(std::int64_t id) const {
  if (id < 0 || id >= std::int64_t(tokens.size()) || tokens[std::size_t(id)].name.empty()) return nullptr;
  return &tokens[std::size_t(id)];
}

}  // namespace text

Tokenizer Tokenizer::load(const std::string& path) {
  try {
    return from_json(detail::read_all(path), path);
  } catch (const detail::FileError& error) {
    throw FormatError(path, 0, cat("expected a file that can be read, got: ", std::strerror(error.code)));
  }
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(std::make_shared<const text::TokenizerParts>(text::read_tokenizer(json, name)));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  LOCKSTEP_CHECK(text.size() < std::size_t{1} << 31, "[tokenizer] expected a text of less than 2^31 bytes, got ",
                 text.size());
  std::string valid;
  if (!text::is_utf8(text)) text = valid = text::replaced_utf8(text);
  std::vector<std::int64_t> ids;
  if (options.add_special) ids = parts_->prefix;
  const auto encode_piece = [&](std::string_view piece) { parts_->model.encode(piece, ids); };
  const auto add = [&](std::int32_t id) { ids.push_back(id); };
  parts_->added.split(
      text, options.parse_special,
      [&](std::string_view section, std::size_t begin) {
        std::string normalized;
        if (!parts_->normalizer.empty()) section = normalized = text::normalized(parts_->normalizer, section);
        parts_->added_normalized.split(
            section, options.parse_special,
            [&](std::string_view rest, std::size_t at) {
              text::pre_tokenize(parts_->pre_tokenizer, rest, begin + at == 0, encode_piece);
            },
            add);
      },
      add);
  if (options.add_special) ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const {
  std::string out, run;
  bool first = true;
  for (const std::int64_t id : ids) {
    const auto* token = parts_->token(id);
    if (token == nullptr || (token->special && options.skip_special)) continue;
    if (token->text.single_byte) {
      run += token->text.bytes;
    } else {
      text::append_run(out, run);
      if (!first && parts_->decoder.spaces) out += ' ';
      out += first ? text::token_text(parts_->decoder, token->shown, true).bytes : token->text.bytes;
    }
    first = false;
  }
  text::append_run(out, run);
  if (!text::is_utf8(out)) out = text::replaced_utf8(out);
  std::size_t stripped = 0;
  const std::string& mark = parts_->decoder.stripped;
  for (std::size_t i = 0; i < parts_->decoder.strip_count && out.compare(stripped, mark.size(), mark) == 0; ++i)
    stripped += mark.size();
  return out.substr(stripped);
}

std::int64_t Tokenizer::size() const { return std::int64_t(parts_->tokens.size()); }

std::optional<std::int64_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = parts_->ids.find(token);
  if (found == parts_->ids.end()) return std::nullopt;
  return found->second;
}

std::string_view Tokenizer::token_of(std::int64_t id) const {
  const auto* token = parts_->token(id);
  return token == nullptr ? std::string_view() : token->name;
}

std::string_view Tokenizer::bytes_of(std::int64_t id) const {
  const auto* token = parts_->token(id);
  return token == nullptr ? std::string_view() : token->text.bytes;
}

bool Tokenizer::is_special(std::int64_t id) const {
  const auto* token = parts_->token(id);
  return token != nullptr && token->special;
}

}  // namespace lockstep
