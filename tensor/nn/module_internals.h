// What a module shares with its copies, for the sources of modules. Private to the library.
#pragma once

#include <memory>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

struct ModuleInternals {
  static std::shared_ptr<ModuleState>& state(ModuleBase& module) { return module.state_; }
  static const std::shared_ptr<ModuleState>& state(const ModuleBase& module) { return module.state_; }
};

}  // namespace lockstep
