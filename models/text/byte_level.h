// The alphabet in which byte-level tokenizers write bytes: printable ones as themselves, the others from U+0100 on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::text {

// The bytes that a token stands for; empty when a character is none of the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view token);

}  // namespace lockstep::text
