#include "lockstep/parallel/comm/parameter_hash.h"

#include "lockstep/parallel/comm/sha256.h"

namespace lockstep {

std::string parameters_sha256(const ModuleBase& module) {
  const NoGrad no_grad;
  detail::Sha256 hash;
  for (const NamedTensor& named : module.state_dict()) {
    const Tensor tensor = named.tensor.detach().to(Device::cpu()).contiguous();
    hash.update(cat(named.name, '\n', tensor.dtype(), tensor.shape(), '\n'));
    if (tensor.count() > 0) hash.update(tensor.data(), tensor.bytes());
  }
  return detail::to_hex(hash.digest());
}

}  // namespace lockstep
