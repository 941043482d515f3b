// What tokens are in the text that they are decoded to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct DecoderStep {
  enum Kind { byte_level, byte_fallback, replace, metaspace } kind;
  std::string text, content;  // replace: what by what; metaspace: what by a space
  bool drop_first = false;    // metaspace: the first token has no spaces
};

struct Decoder {
  std::vector<DecoderStep> steps;  // for each token by itself
  bool spaces = false;             // tokens are joined by spaces
  std::string stripped;            // a character that is taken off the beginning of the whole text
  std::size_t strip_count = 0;     // at most so often

  // Bytes that make no character come from tokens that are bytes: each is a U+FFFD. Else one stands for what could have
  // been a character.
  bool replaces_each_byte() const { return !steps.empty() && steps.back().kind == DecoderStep::byte_fallback; }
};

struct TokenText {
  std::string bytes;
  bool single_byte = false;  // a <0xNN> that stands for its byte: of several, whole characters
};

// The text of one token; `first`: the one that begins the text.
TokenText token_text(const Decoder& decoder, std::string_view token, bool first);

}  // namespace lockstep::text
