// Ranks that go on together or not at all. Private to the library.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// What every rank has brought, by rank: `text`, or a `problem` ("": none). Throws Error for a problem of any rank, on
// all of them the same: that of the lowest, "<prefix>rank 3: …". Blocks.
std::vector<std::string> meet(Communicator& communicator, const std::string& prefix, const std::string& text,
                              const std::string& problem);

}  // namespace lockstep::detail
