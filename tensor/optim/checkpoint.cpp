#include "lockstep/tensor/optim/checkpoint.h"

namespace lockstep {

void save_optimizer(const Optimizer& optimizer, const ModuleBase& module, const std::string& path,
                    std::map<std::string, std::string> metadata) {
  LOCKSTEP_CHECK(metadata.emplace("optimizer", optimizer.name()).second,
                 "[save_optimizer] expected metadata without 'optimizer', got '", metadata["optimizer"], "'");
  save_safetensors(path, optimizer.state_dict(module), metadata);
}

std::map<std::string, std::string> load_optimizer(Optimizer& optimizer, const ModuleBase& module,
                                                  const std::string& path) {
  Safetensors file = load_safetensors(path);
  const auto found = file.metadata.find("optimizer");
  LOCKSTEP_CHECK(found != file.metadata.end() && found->second == optimizer.name(),
                 "[load_optimizer] expected the state of ", optimizer.name(), " in '", path, "', got ",
                 found == file.metadata.end() ? "a file of no optimizer" : "that of " + found->second);
  optimizer.load_state_dict(file.tensors, module);
  return std::move(file.metadata);
}

}  // namespace lockstep
