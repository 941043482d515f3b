#include "lockstep/parallel/ddp/bucket_state.h"

#include <charconv>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {
namespace {

template <class T>
std::vector<T> numbers_in(std::string_view text) {
  std::vector<T> numbers;
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    T number{};
    const bool separated = numbers.empty() || *at++ == ' ';
    const auto [after, error] = std::from_chars(at, end, number);
    LOCKSTEP_CHECK(separated && error == std::errc(),
                   "[parse_bucket_state] expected numbers with a space between them, got '", std::string(text), "'");
    numbers.push_back(number);
    at = after;
  }
  return numbers;
}

}  // namespace

std::string detail::join_numbers(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += cat(text.empty() ? "" : " ", number);
  return text;
}

std::vector<int> detail::parse_numbers(const std::string& text) { return numbers_in<int>(text); }

std::string to_string(const DdpBucketState& state) {
  return cat(state.first_bucket_bytes, ' ', state.bucket_cap_bytes, ": ", detail::join_numbers(state.order));
}

DdpBucketState parse_bucket_state(const std::string& text) {
  const std::size_t colon = text.find(": ");
  const std::vector<std::size_t> limits =
      numbers_in<std::size_t>(std::string_view(text).substr(0, colon == std::string::npos ? 0 : colon));
  LOCKSTEP_CHECK(limits.size() == 2, "[parse_bucket_state] expected two limits, a colon and an order, got '", text,
                 "'");
  return {limits[0], limits[1], detail::parse_numbers(text.substr(colon + 2))};
}

}  // namespace lockstep
