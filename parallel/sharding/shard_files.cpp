#include "lockstep/parallel/sharding/shard_files.h"

#include <cstdio>
#include <filesystem>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::detail {
namespace {

// Names are UTF-8: save_safetensors has checked them.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::filesystem::path index_of(const std::string& folder, const std::string& stem) {
  return std::filesystem::path(folder) / (stem + ".safetensors.index.json");
}

}  // namespace

std::string shard_file(const std::string& stem, int rank, int ranks) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05d-of-%05d", rank + 1, ranks);
  return stem + numbers + ".safetensors";
}

void remove_index(const std::string& folder, const std::string& stem) {
  const std::filesystem::path path = index_of(folder, stem);
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throw Error(cat("[save_sharded] cannot remove '", path.string(), "': ", error.message()));
}

void write_index(const std::string& folder, const std::string& stem, const std::map<std::string, std::string>& files,
                 std::int64_t total_bytes) {
  std::string text = cat("{\n  \"metadata\": {\n    \"total_size\": ", total_bytes, "\n  },\n  \"weight_map\": {");
  const char* before = "\n";
  for (const auto& [name, file] : files) {
    text += cat(before, "    ", quoted(name), ": ", quoted(file));
    before = ",\n";
  }
  text += "\n  }\n}\n";
  write_whole_file("save_sharded", index_of(folder, stem).string(), text);
}

}  // namespace lockstep::detail
