// Which communicator suits ranks: what each says of itself, as text that goes through a store, and the choice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// What the choice depends on, of one rank.
struct RankTraits {
  std::string machine;  // ranks with the same one can hand over memory
  std::string process;
  std::string gpu;              // "" on other than CUDA devices
  std::string kind;             // of device: "host", "cuda"
  std::string backend;          // that it asks for; "": what suits
  std::string no_nccl, no_mpi;  // why it can not; "": it can
  friend bool operator==(const RankTraits&, const RankTraits&) = default;
};
// Any text in the fields comes back as it was. Throws Error for what is none of pack()'s.
LOCKSTEP_API std::string pack(const RankTraits& traits);
LOCKSTEP_API RankTraits unpack(std::string_view text);

struct RankChoice {
  std::string backend, reason;
};
// The same on every rank that gives the same. Throws as make_communicator does.
LOCKSTEP_API RankChoice choose(const std::vector<RankTraits>& ranks);

}  // namespace lockstep::detail
