// Writing the header of a safetensors file.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/io/safetensors_header.h"

namespace lockstep::detail {

std::string format_header(const std::vector<HeaderEntry>& entries, const std::map<std::string, std::string>& metadata) {
  using Json = nlohmann::json;
  const auto text = [](const std::string& value) {
    try {
      return Json(value).dump();
    } catch (const Json::exception&) {
      detail::fail<InvalidArgument>("[save_safetensors] expected UTF-8, got ", quote_name(value));
    }
  };
  std::string out(kLengthBytes, '\0');
  char separator = '{';
  const auto begin_entry = [&](const std::string& key) {
    out += separator;
    out += text(key);
    out += ':';
    separator = ',';
  };
  if (!metadata.empty()) {
    begin_entry(std::string(kMetadata));
    char inner = '{';
    for (const auto& [key, value] : metadata) {
      out += cat(inner, text(key), ':', text(value));
      inner = ',';
    }
    out += '}';
  }
  std::vector<std::string_view> names;
  for (const HeaderEntry& entry : entries) {
    LOCKSTEP_CHECK(entry.name != kMetadata, "[save_safetensors] the name ", kMetadata, " is reserved");
    names.push_back(entry.name);
    begin_entry(entry.name);
    out += cat("{\"dtype\":\"", kFileDTypes[dtype_rank(entry.dtype)].name, "\",\"shape\":[");
    for (int i = 0; i < entry.shape.rank(); ++i) out += cat(i ? "," : "", entry.shape[i]);
    out += cat("],\"data_offsets\":[", entry.begin, ',', entry.end, "]}");
  }
  out += separator == '{' ? "{}" : "}";
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  LOCKSTEP_CHECK(twice == names.end(), "[save_safetensors] expected each name once, got ",
                 twice == names.end() ? std::string() : quote_name(*twice), " twice");

  out.resize((out.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = out.size() - kLengthBytes;
  LOCKSTEP_CHECK(length <= kMaxHeaderBytes, "[save_safetensors] expected names, shapes and metadata of at most ",
                 kMaxHeaderBytes, " bytes, got ", length);
  for (std::uint64_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out;
}

int dtype_rank(DType dtype) {
  const auto* found = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                   [&](const FileDType& each) { return each.dtype == dtype; });
  return static_cast<int>(found - std::begin(kFileDTypes));
}

std::string quote_name(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string out = "'";
  std::size_t end = std::min(name.size(), kLongest);
  while (end < name.size() && end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0u) == 0x80u) --end;
  for (const char c : name.substr(0, end)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (end < name.size() ? "…'" : "'");
}

}  // namespace lockstep::detail
