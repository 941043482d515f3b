// Which parameters are sharded together. Private to the library.
#pragma once

#include <vector>

#include "lockstep/parallel/sharding/sharded_unit.h"

namespace lockstep::detail {

// The units of a module, the outermost first, with parameters that are parts from then on; buffers and ignored
// parameters are on the communicator's device. `ignored`: those that are trained. Throws what the constructor of
// FullyShardedDataParallel does, before anything is changed, but for options.initialise. Blocks until all ranks have
// come here.
std::vector<ShardedUnit> form_units(ModuleBase& module, Communicator& communicator, const FullyShardedOptions& options,
                                    std::vector<Parameter>& ignored);

}  // namespace lockstep::detail
