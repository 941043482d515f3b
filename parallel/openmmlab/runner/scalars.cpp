#include "lockstep/parallel/openmmlab/runner/scalars.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/parallel/openmmlab/runner/checkpoint_file.h"
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
    const auto seconds = std::llround(value);
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

namespace {

std::filesystem::path path_in(const std::string& folder) { return std::filesystem::path(folder) / "scalars.json"; }

}  // namespace

void drop_after(const std::string& folder, std::int64_t iter) {
  const std::filesystem::path path = path_in(folder);
  std::ifstream before(path);
  std::string kept;
  bool drops = false;
  for (std::string line; std::getline(before, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    const bool torn = object.is_discarded() && before.eof();
    const bool later = object.is_object() && object.contains("iter") && object["iter"].is_number() &&
                       object["iter"].get<double>() > static_cast<double>(iter);
    if (torn || later)
      drops = true;
    else
      kept += line + '\n';
  }
  if (drops) replace_file(path, kept);
}

void append_json(const std::string& folder, const Place& place, const Numbers& numbers) {
  nlohmann::ordered_json object{{"mode", place.mode}, {"epoch", place.epoch}, {"iter", place.iter}};
  for (const auto& [name, value] : numbers) object[name] = value;
  const std::filesystem::path path = path_in(folder);
  std::error_code ignored;  // the file says what is wrong
  std::filesystem::create_directories(folder, ignored);
  errno = 0;
  std::ofstream file(path, std::ios::app);
  file << object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  if (!file) fail_to_write(path, errno);
}

}  // namespace lockstep::detail
