// What a launcher knows of ranks that are gone. Private to the library; defined with the stores.
#pragma once

#include <vector>

#include "lockstep/parallel/comm/survivors.h"

namespace lockstep::detail {

// `job_ranks`: the communicator's ranks by their numbers in the job, or none. Those whose processes have ended, as the
// store's launcher says, are gone too.
RollCall with_ended_ranks(RollCall call, std::vector<int> job_ranks);

}  // namespace lockstep::detail
