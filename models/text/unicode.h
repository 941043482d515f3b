// What the tokenizers of Hugging Face take characters for, and UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/models/text/unicode_tables.h"

namespace lockstep::text {

// Of a character, as bits.
inline constexpr unsigned kLetter = 1, kNumber = 2, kSpace = 4;  // \p{L}, \p{N}, \s
inline constexpr unsigned kWord = 8;                             // \w of single_word
inline constexpr unsigned kNormalizes = 16;                      // NFC changes it, or joins it to what stands before it

unsigned classes_beyond_ascii(char32_t code);
inline unsigned classes_of(char32_t code) { return code < 128 ? kAsciiClasses[code] : classes_beyond_ascii(code); }

struct Character {
  char32_t code;
  std::size_t bytes;  // that it takes, or that one U+FFFD stands for
  enum { whole, bad, cut_off } state;
};
// The first character of a text that is not empty. Bytes that are none, and a beginning that goes on behind the end
// (cut_off), have the code U+FFFD and end where Python's errors="replace" ends them.
Character first_character(std::string_view text);
// The last one of a valid text that is not empty.
Character last_character(std::string_view text);

void append_utf8(std::string& out, char32_t code);
bool is_utf8(std::string_view text);
// With U+FFFD for whatever is not UTF-8.
std::string replaced_utf8(std::string_view bytes);

// The canonical composition of a valid text.
std::string nfc(std::string_view text);

}  // namespace lockstep::text
