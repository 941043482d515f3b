#include "lockstep/runtime/strings.h"

#include <charconv>
#include <iterator>

namespace lockstep {
namespace {

template <class T>
std::string shortest(T value) {
  char text[32];
  const auto result = std::to_chars(text, std::end(text), value);
  return std::string(text, result.ptr);
}

}  // namespace

std::string number_to_string(double value) { return shortest(value); }
std::string number_to_string(float value) { return shortest(value); }

std::string bytes_to_string(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return cat(bytes, bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(bytes);
  int unit = -1;
  for (; value >= 1024 && unit < 5; ++unit) value /= 1024;
  char text[32];
  const auto result = std::to_chars(text, std::end(text), value, std::chars_format::fixed, 2);
  std::string_view digits(text, static_cast<std::size_t>(result.ptr - text));
  while (digits.back() == '0') digits.remove_suffix(1);
  if (digits.back() == '.') digits.remove_suffix(1);
  return cat(digits, ' ', kUnits[unit]);
}

}  // namespace lockstep
