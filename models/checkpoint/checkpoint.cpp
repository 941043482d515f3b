#include "lockstep/models/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/models/checkpoint/json_file.h"
#include "lockstep/parallel/tensor_parallel/parts.h"
#include "lockstep/tensor/io/safetensors_header.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kMap = "weight_map";

// The name of a file beside the index, and of no other.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

Safetensors read_shards(const std::string& index_path, const LoadSafetensorsOptions& options) {
  const detail::JsonFile index = detail::JsonFile::read(index_path);
  std::map<std::string, std::unordered_set<std::string>> shards;  // the names that are to be in each
  for (const auto& [name, file] : index.text_fields(kMap)) {
    if (!is_plain(file))
      index.fail(kMap, cat("expected the name of a file beside the index for ", detail::quote_name(name), ", got ",
                           detail::quote_name(file)));
    shards[file].insert(name);
  }
  Safetensors all;
  for (auto& [file, names] : shards) {
    Safetensors shard = load_safetensors((fs::path(index_path).parent_path() / file).string(), options);
    for (NamedTensor& each : shard.tensors)
      if (names.erase(each.name) > 0) all.tensors.push_back(std::move(each));
    if (!names.empty())
      index.fail(kMap, cat("expected ", detail::quote_name(*names.begin()), " in ", detail::quote_name(file),
                           ", which does not have it"));
    if (all.metadata.empty()) all.metadata = std::move(shard.metadata);
  }
  return all;
}

}  // namespace

Safetensors read_checkpoint(const std::string& path, const LoadSafetensorsOptions& options) {
  const fs::path given(path);
  std::error_code ignored;
  if (fs::is_directory(given, ignored)) {
    const fs::path file = given / kFile, index = given / kIndex;
    if (fs::exists(file, ignored)) return load_safetensors(file.string(), options);
    if (fs::exists(index, ignored)) return read_shards(index.string(), options);
    throw Error(cat("[load_checkpoint] expected ", kFile, " or ", kIndex, " in the folder '", path,
                    "', found neither: other formats are not read"));
  }
  return given.extension() == ".json" ? read_shards(path, options) : load_safetensors(path, options);
}

bool detail::has_parts(const ModuleBase& module) {
  const std::vector<NamedParameter> all = module.named_parameters();
  return std::any_of(all.begin(), all.end(), [](const NamedParameter& each) { return shard_of(each.parameter); });
}

LoadReport detail::load_checkpoint(ModuleBase& module, Safetensors checkpoint, const std::string& name, bool strict,
                                   bool keep_pages) {
  if (const auto* names = dynamic_cast<const CheckpointNames*>(&module)) {
    std::vector<NamedTensor> needed;
    std::unordered_map<std::string, std::string> from;
    for (NamedTensor& each : checkpoint.tensors) {
      std::optional<std::string> here = names->name_in_module(each.name);
      if (!here) continue;
      const auto [first, is_new] = from.emplace(*here, each.name);
      LOCKSTEP_CHECK(is_new, "[load_checkpoint] ", name, ": expected one tensor for '", *here, "', got '",
                     first->second, "' and '", each.name, "'");
      needed.push_back({std::move(*here), std::move(each.tensor)});
    }
    checkpoint.tensors = std::move(needed);
  }
  if (has_parts(module)) {
    checkpoint.tensors = own_parts(module, std::move(checkpoint.tensors));
    if (!keep_pages)
      for (NamedTensor& each : checkpoint.tensors) each.tensor = each.tensor.clone();
  }
  return load_model(module, std::move(checkpoint), name, {.strict = strict, .adopt = true});
}

LoadReport load_checkpoint(ModuleBase& module, Safetensors checkpoint, const std::string& name, bool strict) {
  return detail::load_checkpoint(module, std::move(checkpoint), name, strict, false);
}

LoadReport load_checkpoint(ModuleBase& module, const std::string& path, const LoadCheckpointOptions& options) {
  const bool map = options.map || detail::has_parts(module);
  return detail::load_checkpoint(module, read_checkpoint(path, {.map = map}), path, options.strict, options.map);
}

}  // namespace lockstep
