// Building messages without iostreams (they cost a user's compile time).
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/runtime/api.h"

namespace lockstep {

// Shortest text that reads back as the same number ("0.1", "3e-05").
LOCKSTEP_API std::string number_to_string(double value);
LOCKSTEP_API std::string number_to_string(float value);
// "512 bytes", "1.5 MiB".
LOCKSTEP_API std::string bytes_to_string(std::uint64_t bytes);

namespace detail {
inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
inline void append(std::string& out, bool value) { out += value ? "true" : "false"; }
template <std::integral T>
void append(std::string& out, T value) {
  out += std::to_string(value);
}
template <std::floating_point T>
void append(std::string& out, T value) {
  out += number_to_string(value);
}
template <class T>
requires requires(const T& value) { to_string(value); }
void append(std::string& out, const T& value) { out += to_string(value); }
}  // namespace detail

// Concatenates strings, numbers and everything that has a `to_string`.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

}  // namespace lockstep
