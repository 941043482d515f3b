#include "lockstep/models/text/splitter.h"

#include "lockstep/models/text/unicode.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr unsigned kKinds = kLetter | kNumber | kSpace;  // none of them: "other"

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

struct Kind {
  unsigned kind;
  std::size_t bytes;
};
Kind kind_at(std::string_view text, std::size_t at) {
  const Character character = first_character(text.substr(at));
  return {classes_of(character.code) & kKinds, character.bytes};
}

// The end of at most `most` characters of one kind.
std::size_t end_of(unsigned kind, std::string_view text, std::size_t at, std::size_t most = std::string_view::npos) {
  for (; most > 0 && at < text.size(); --most) {
    const Kind next = kind_at(text, at);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

// 's|'t|'re|'ve|'m|'ll|'d; 0: none of them.
std::size_t contraction(std::string_view text, bool any_case) {
  if (text[0] != '\'' || text.size() < 2) return 0;
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      return any_case && text.substr(1, 2) == "\u017F" ? 3 : 0;  // the long s is an s in another case
  }
}

// \s+(?!\S)|\s+ : before what is no space, one space is left to it.
std::size_t spaces(std::string_view text, std::size_t end) {
  if (end == text.size()) return end;
  const std::size_t last = end - last_character(text.substr(0, end)).bytes;
  return last > 0 ? last : end;
}

std::size_t match_gpt2(std::string_view text) {
  if (const std::size_t bytes = contraction(text, false)) return bytes;
  const std::size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const unsigned kind = kind_at(text, begin).kind;
  return kind != kSpace ? end_of(kind, text, begin) : spaces(text, end_of(kSpace, text, 0));
}

std::size_t match_llama3(std::string_view text, std::size_t digits) {
  if (const std::size_t bytes = contraction(text, true)) return bytes;
  const Kind first = kind_at(text, 0);
  if (first.kind == kNumber) return end_of(kNumber, text, 0, digits);
  if (first.kind == kLetter) return end_of(kLetter, text, 0);
  if (!is_line_end(text[0]) && first.bytes < text.size() && kind_at(text, first.bytes).kind == kLetter)
    return end_of(kLetter, text, first.bytes);
  const std::size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  if (kind_at(text, begin).kind == 0) {
    std::size_t end = end_of(0, text, begin);
    while (end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  const std::size_t end = end_of(kSpace, text, 0);
  const std::size_t line_end = text.substr(0, end).find_last_of("\r\n");
  return line_end != std::string_view::npos ? line_end + 1 : spaces(text, end);
}

}  // namespace

std::optional<Pattern> pattern_of(std::string_view expression) {
  if (expression == kGpt2) return Pattern::gpt2;
  if (expression == kLlama3) return Pattern::llama3;
  if (expression == kQwen2) return Pattern::qwen2;
  return std::nullopt;
}

std::size_t match(Pattern pattern, std::string_view text) {
  return pattern == Pattern::gpt2 ? match_gpt2(text) : match_llama3(text, pattern == Pattern::llama3 ? 3 : 1);
}

}  // namespace lockstep::text
