// How FullyShardedDataParallel works.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/ddp/options.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// Whether the module at `path` becomes a unit of its own. `elements`: of the parameters in it that are in no unit
// below. Asked of every module but the outermost, those inside before those around; the same answers on every rank.
using WrapPolicy = std::function<bool(const std::string& path, const ModuleBase& module, std::int64_t elements)>;

// Modules of these classes.
template <class... M>
WrapPolicy wrap_modules() {
  return [](const std::string&, const ModuleBase& module, std::int64_t) {
    return ((dynamic_cast<const M*>(&module) != nullptr) || ...);
  };
}
// Modules with these names ("blocks.3").
LOCKSTEP_API WrapPolicy wrap_names(std::vector<std::string> names);
// A unit is closed where it has reached so many elements.
LOCKSTEP_API WrapPolicy wrap_by_size(std::int64_t elements);

// Ranks may differ in `timeout` and `units_in_flight`.
struct FullyShardedOptions {
  WrapPolicy wrap = {};  // empty: one unit
  // Parameters are given back after a unit's forward and gathered again for its backward. False: they stay from forward
  // to backward, so that gradients and the optimizer's state alone are sharded in between (stage 2). Those of the
  // outermost unit always stay: its backward comes first.
  bool reshard_after_forward = true;
  // As many units whose memory is given back but still read by the device, and as many reductions under way, may there
  // be before the host waits for the oldest. More need memory.
  int units_in_flight = 2;
  bool prefetch = true;           // the next unit is gathered while one computes
  bool broadcast_buffers = true;  // rank 0's, before every training forward outside of no_sync()
  bool init_sync = true;          // verify the model across ranks and take over rank 0's elements at construction
  std::vector<std::string> ignore = {};  // names of parameters that stay whole and whose gradients stay on the rank
  DdpMixedPrecision mixed_precision = {};
  std::optional<Milliseconds> timeout = std::nullopt;  // of the collectives; default: the communicator's
  // Writes the first elements of a parameter that has none (Parameter::uninitialized); called unit by unit with memory
  // on the communicator's device, on rank 0 alone with init_sync, else on every rank. Without it such a parameter is an
  // error.
  std::function<void(const std::string& name, const Tensor& whole)> initialise = {};
};

}  // namespace lockstep
