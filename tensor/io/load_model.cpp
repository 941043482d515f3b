// Modules from and to safetensors files.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/adopt.h"
#include "lockstep/tensor/nn/member_visitor.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "module.";

// Every parameter and buffer under each of its names.
std::vector<NamedParameter> all_names(const ModuleBase& module) {
  std::vector<NamedParameter> found;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool) {
    found.push_back({visitor.full_name(name), parameter});
  };
  visitor.visit(module);
  return found;
}

template <class List>
std::size_t count_prefixed(const List& list) {
  return static_cast<std::size_t>(
      std::count_if(list.begin(), list.end(), [](const auto& each) { return each.name.starts_with(kPrefix); }));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "" : ", ", name);
  return text.empty() ? "none" : text;
}

std::string listed(const std::vector<LoadReport::Mismatch>& mismatches) {
  std::vector<std::string> texts;
  for (const LoadReport::Mismatch& each : mismatches)
    texts.push_back(cat(each.name, " (expected ", each.expected, ", got ", each.got, ")"));
  return listed(texts);
}

}  // namespace

void save_model(const ModuleBase& module, const std::string& path, const std::map<std::string, std::string>& metadata) {
  const std::vector<NamedTensor> state = module.state_dict();
  LOCKSTEP_CHECK(!state.empty(), "[save_model] expected a module with parameters or buffers to write to \"", path,
                 "\", got one whose members() lists none");
  save_safetensors(path, state, metadata);
}

namespace {

// The part of a file that is a model's: see model_prefix.
Safetensors model_in(Safetensors file) {
  const auto found = file.metadata.find("model_prefix");
  if (found == file.metadata.end()) return file;
  const std::string& prefix = found->second;
  std::erase_if(file.tensors, [&](const NamedTensor& each) { return !each.name.starts_with(prefix); });
  for (NamedTensor& each : file.tensors) each.name.erase(0, prefix.size());
  return file;
}

LoadReport load(ModuleBase& module, Safetensors whole, const std::string& path, const LoadModelOptions& options,
                bool allow_mismatches) {
  Safetensors file = model_in(std::move(whole));
  const std::vector<NamedParameter> wanted = all_names(module);
  const std::size_t in_file = count_prefixed(file.tensors), in_module = count_prefixed(wanted);
  const bool strip = !file.tensors.empty() && in_file == file.tensors.size() && in_module == 0;
  const bool add = !wanted.empty() && in_module == wanted.size() && in_file == 0;

  std::unordered_map<std::string, const Tensor*> given;
  for (const NamedTensor& each : file.tensors) {
    const std::string name = strip ? each.name.substr(kPrefix.size()) : add ? cat(kPrefix, each.name) : each.name;
    given.emplace(name, &each.tensor);
  }
  LoadReport report;
  report.metadata = std::move(file.metadata);
  std::vector<std::pair<Parameter, Tensor>> assignments;
  std::unordered_set<const ParameterBody*> filled;
  std::unordered_set<const Tensor*> used;
  for (const auto& [name, parameter] : wanted) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    used.insert(found->second);
    if (found->second->shape() != parameter.shape()) {
      report.mismatched.push_back({name, parameter.shape(), found->second->shape()});
      continue;
    }
    assignments.emplace_back(parameter, *found->second);
    filled.insert(parameter.body());
  }
  for (const auto& [name, parameter] : wanted)
    if (!given.contains(name) && !filled.contains(parameter.body())) report.missing.push_back(name);
  for (const NamedTensor& each : file.tensors)
    if (!used.contains(&each.tensor)) report.unexpected.push_back(each.name);
  LOCKSTEP_CHECK(options.strict ? report.complete() : allow_mismatches || report.mismatched.empty(), "[load_model] ",
                 path, ": expected the names and shapes of the module; ", report.describe());
  // Not what anybody wants who loads a part of a model.
  LOCKSTEP_CHECK(!assignments.empty() || wanted.empty(), "[load_model] ", path,
                 ": expected tensors of the module, got none; ", report.describe());
  file.tensors.clear();  // what is converted goes
  if (options.adopt) {
    detail::adopt_all(std::move(assignments));
    return report;
  }
  for (auto& [parameter, tensor] : assignments) tensor = tensor.to(parameter.dtype());
  // From here on nothing needs memory.
  detail::assign_all("load_model", assignments);
  return report;
}

}  // namespace

std::string LoadReport::describe() const {
  return cat("missing: ", listed(missing), "; unexpected: ", listed(unexpected),
             "; other shapes: ", listed(mismatched));
}

LoadReport load_model(ModuleBase& module, const std::string& path, const LoadModelOptions& options) {
  return load(module, load_safetensors(path, {.map = options.map}), path, options, true);
}

LoadReport load_model(ModuleBase& module, Safetensors file, const std::string& name, const LoadModelOptions& options) {
  return load(module, std::move(file), name, options, true);
}

std::map<std::string, std::string> load_model(ModuleBase& module, const std::string& path, bool strict) {
  return load(module, load_safetensors(path), path, {.strict = strict}, false).metadata;
}

}  // namespace lockstep
