#include "lockstep/parallel/openmmlab/runner/internal/scalars.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

std::string shown(const std::string& name, double value) {
  char text[64];
  const auto print = [&](const char* pattern, auto... values) {
    std::snprintf(text, sizeof text, pattern, values...);
    return std::string(text);
  };
  const auto is = [&](const char* what) { return name == what || name.ends_with(cat('.', what)); };
  if (name == "eta" && std::isfinite(value)) {
    const auto seconds = static_cast<long long>(value + 0.5);
    return print("%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60, seconds % 60);
  }
  return print(is("lr") || is("momentum") ? "%.4e" : "%.4f", value);
}

}  // namespace

std::string line_of(const Place& place, const Numbers& numbers) {
  std::string line = cat(place.by_epoch ? "Epoch(" : "Iter(", place.mode, ") ");
  if (place.by_epoch) line += cat('[', place.epoch, ']');
  line += cat('[', place.number, '/', place.numbers, ']');
  for (const auto& [name, value] : numbers) line += cat("  ", name, ": ", shown(name, value));
  return line;
}

void append_json(const std::string& folder, const Place& place, const Numbers& numbers) {
  nlohmann::ordered_json object{{"mode", place.mode}, {"epoch", place.epoch}, {"iter", place.iter}};
  for (const auto& [name, value] : numbers) object[name] = value;
  const std::filesystem::path path = std::filesystem::path(folder) / "scalars.json";
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  std::ofstream file(path, std::ios::app);
  file << object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  if (!file) fail<Error>("[Runner] expected to write '", path.string(), "', got an error of the system");
}

}  // namespace lockstep::detail
