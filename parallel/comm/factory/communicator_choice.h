// Which communicator suits ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/factory/backends.h"
#include "lockstep/parallel/comm/factory/rank_traits.h"
#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// Whether a rank with such devices that asks for `asked` ("": what suits) may come to use the backend.
bool may_be_chosen(const CommunicatorBackend& backend, const std::string& kind, const std::string& asked);

struct RankChoice {
  const CommunicatorBackend* backend;
  std::string reason;
};
// The same on every rank that gives the same. Throws as make_communicator does.
LOCKSTEP_API RankChoice choose(const std::vector<RankTraits>& ranks);

}  // namespace lockstep::detail
