#include "lockstep/parallel/openmmlab/model/base_model.h"

namespace lockstep {

Device detail::device_of(const ModuleBase& module) {
  const std::vector<Parameter> parameters = module.parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

}  // namespace lockstep
