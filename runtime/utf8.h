// UTF-8: characters of a text, and what is none. Private to the library.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::detail {

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

}  // namespace lockstep::detail
