// Reading environment variables; private to the library.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::detail {

// The variable's text, empty when it is unset.
std::string_view environment(const char* name);
// Whether it is 1; 0, empty or not set is false, and anything else InvalidArgument.
bool environment_flag(const char* name);

// The whole number `text` within [least, most], else InvalidArgument naming `name`.
int parse_count(const char* name, std::string_view text, int least, int most);

// "512", "64K", "2G": a positive number of bytes, else InvalidArgument naming `name`.
std::size_t parse_bytes(const char* name, std::string_view text);

std::string_view trim(std::string_view text);

}  // namespace lockstep::detail
