#include "lockstep/runtime/utf8.h"

namespace lockstep::detail {

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Character::whole};
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, Character::bad};
  const std::size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code = lead & (0x7Fu >> bytes);
  // Overlong forms, surrogates and codes beyond the last one end at the second byte.
  char32_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < bytes; ++i, low = 0x80, high = 0xBF) {
    if (i == text.size()) return {0xFFFD, i, Character::cut_off};
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, Character::bad};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {code, bytes, Character::whole};
}

Character last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80) --at;
  return first_character(text.substr(at));
}

void append_utf8(std::string& out, char32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80u | (code >> shift & 0x3Fu)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0u | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0u | code >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0u | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Character character = first_character(text.substr(at));
    if (character.state != Character::whole) return false;
    at += character.bytes;
  }
  return true;
}

std::string replaced_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Character character = first_character(bytes);
    if (character.state == Character::whole) {
      out.append(bytes.substr(0, character.bytes));
    } else {
      append_utf8(out, character.code);
    }
    bytes.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace lockstep::detail
