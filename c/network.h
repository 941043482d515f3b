// Networks for C: what C++ makes for programs that run them by lockstep/c/lockstep.h.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/c/lockstep.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The caller's, until lockstep_network_free. `run` gets inputs that are on `device`, is called without a graph being
// recorded, by any number of threads at once, and may throw. A plug-in may give what it returns to C, as in
//   extern "C" lockstep_network* make() { return lockstep::network_for_c(Device::cpu(), [net](auto x) {…}); }
LOCKSTEP_API lockstep_network* network_for_c(Device device,
                                             std::function<std::vector<Tensor>(std::span<const Tensor>)> run);

}  // namespace lockstep
