#include "lockstep/models/text/token_texts.h"

#include <charconv>

#include "lockstep/models/text/byte_level.h"
#include "lockstep/models/text/normalizer.h"

namespace lockstep::text {
namespace {

bool read_byte(std::string_view token, std::string& out) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return false;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc{} || end != token.data() + 5) return false;
  out.assign(1, static_cast<char>(byte));
  return true;
}

}  // namespace

TokenText token_text(const Decoder& decoder, std::string_view token, bool first) {
  TokenText text{std::string(token)};
  for (const DecoderStep& step : decoder.steps) {
    if (text.single_byte) break;
    switch (step.kind) {
      case DecoderStep::byte_level:
        if (auto bytes = bytes_of_alphabet(text.bytes)) text.bytes = std::move(*bytes);
        break;
      case DecoderStep::byte_fallback:
        text.single_byte = read_byte(text.bytes, text.bytes);
        break;
      case DecoderStep::replace:
        text.bytes = replaced(text.bytes, step.text, step.content);
        break;
      case DecoderStep::metaspace:
        text.bytes = replaced(text.bytes, step.text, first && step.drop_first ? "" : " ");
        break;
    }
  }
  return text;
}

}  // namespace lockstep::text
