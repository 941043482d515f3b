#include "lockstep/parallel/openmmlab/model/model_wrapper.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using Predicate = std::function<bool(const ModuleBase&)>;
struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::string, Predicate>> entries;
};
Registry& registry() {
  static Registry& wrappers = *new Registry;  // outlives whoever asks at the end of the program
  return wrappers;
}

}  // namespace

bool is_model_wrapper(const ModuleBase& module) {
  if (module.wrapped_module()) return true;
  std::vector<std::pair<std::string, Predicate>> entries;
  {
    const std::lock_guard lock(registry().mutex);
    entries = registry().entries;  // a predicate may do anything: none is called under the lock
  }
  return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return entry.second(module); });
}

void register_model_wrapper(std::string name, Predicate predicate) {
  LOCKSTEP_CHECK(predicate, "[register_model_wrapper] expected a predicate for '", name, "', got none");
  const std::lock_guard lock(registry().mutex);
  for (const auto& [taken, of_taken] : registry().entries)
    LOCKSTEP_CHECK(taken != name, "[register_model_wrapper] expected a name that is not registered, got '", name, "'");
  registry().entries.emplace_back(std::move(name), std::move(predicate));
}

void unregister_model_wrapper(const std::string& name) {
  Predicate removed;  // goes away after the lock
  const std::lock_guard lock(registry().mutex);
  auto& entries = registry().entries;
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.first == name; });
  if (found == entries.end()) {
    std::string names;
    for (const auto& entry : entries) names += cat(names.empty() ? "" : ", ", entry.first);
    detail::fail<InvalidArgument>("[unregister_model_wrapper] expected a name out of (", names, "), got '", name, "'");
  }
  removed = std::move(found->second);
  entries.erase(found);
}

std::vector<std::string> model_wrappers() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& entry : registry().entries) names.push_back(entry.first);
  return names;
}

}  // namespace lockstep
