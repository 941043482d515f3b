// What the tokenizers of Hugging Face take characters for.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/models/text/unicode_tables.h"
#include "lockstep/runtime/utf8.h"

namespace lockstep::text {

// Of a character, as bits.
inline constexpr unsigned kLetter = 1, kNumber = 2, kSpace = 4;  // \p{L}, \p{N}, \s
inline constexpr unsigned kWord = 8;                             // \w of single_word
inline constexpr unsigned kNormalizes = 16;                      // NFC changes it, or joins it to what stands before it

unsigned classes_beyond_ascii(char32_t code);
inline unsigned classes_of(char32_t code) { return code < 128 ? kAsciiClasses[code] : classes_beyond_ascii(code); }

using detail::append_utf8;
using detail::Character;
using detail::first_character;
using detail::is_utf8;
using detail::last_character;
using detail::replaced_utf8;

// The canonical composition of a valid text.
std::string nfc(std::string_view text);

}  // namespace lockstep::text
