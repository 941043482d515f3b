#include "lockstep/models/text/byte_level.h"

#include <array>

#include "lockstep/models/text/unicode.h"

namespace lockstep::text {
namespace {

constexpr bool is_printed(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The bytes behind U+0100, U+0101, ...
constexpr auto kHidden = [] {
  std::array<char, 68> hidden{};
  std::size_t count = 0;
  for (unsigned byte = 0; byte < 256; ++byte)
    if (!is_printed(byte)) hidden[count++] = static_cast<char>(byte);
  return hidden;
}();

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Character character = first_character(token);
    if (character.code < 0x100 && is_printed(character.code)) {
      bytes += static_cast<char>(character.code);
    } else if (character.code >= 0x100 && character.code < 0x100 + kHidden.size()) {
      bytes += kHidden[character.code - 0x100];
    } else {
      return std::nullopt;
    }
    token.remove_prefix(character.bytes);
  }
  return bytes;
}

}  // namespace lockstep::text
