#include "lockstep/runtime/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

std::string_view environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::string_view(text) : std::string_view();
}

bool environment_flag(const char* name) {
  const std::string_view text = environment(name);
  LOCKSTEP_CHECK(text.empty() || text == "0" || text == "1", "[", name, "] expected 0 or 1, got \"", text, "\"");
  return text == "1";
}

int parse_count(const char* name, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, "[", name,
                 "] expected a number from ", least, " to ", most, ", got \"", text, "\"");
  return value;
}

std::size_t parse_bytes(const char* name, std::string_view text) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  auto [end, error] = std::from_chars(text.data(), last, value);
  int shift = 0;
  if (error == std::errc() && end != last) {
    constexpr std::string_view kSuffixes = "KMGT";
    const auto found = kSuffixes.find(*end);
    if (found != kSuffixes.npos) {
      shift = 10 * (static_cast<int>(found) + 1);
      ++end;
    }
  }
  LOCKSTEP_CHECK(
      error == std::errc() && end == last && value > 0 && value <= std::numeric_limits<std::size_t>::max() >> shift,
      "[", name, "] expected a positive number of bytes such as 1073741824, 512M or 8G, got \"", text, "\"");
  return static_cast<std::size_t>(value) << shift;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace lockstep::detail
