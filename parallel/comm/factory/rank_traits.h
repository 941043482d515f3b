// What ranks say of themselves, so that all of them choose the same communicator, as text that goes through a store.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// What the choice depends on, of one rank.
struct RankTraits {
  std::string machine;  // ranks with the same one can hand over memory
  std::string process;
  std::string gpu;                             // "" on devices that share no hardware (Backend::hardware)
  std::string shares_gpu;                      // "1": the GPU may be another process's as well (nccl_shares_gpus)
  std::string kind;                            // of device: "host", "cuda"
  std::string backend;                         // that it asks for; "": what suits
  std::map<std::string, std::string> why_not;  // by backend: why it cannot; absent: it can
  friend bool operator==(const RankTraits&, const RankTraits&) = default;
};
// Any text in the fields comes back as it was. Throws Error for what is none of pack()'s.
LOCKSTEP_API std::string pack(const RankTraits& traits);
LOCKSTEP_API RankTraits unpack(std::string_view text);

// What all of them together are.
struct RankTopology {
  std::size_t ranks = 0, processes = 0, machines = 0;
  // The first two ranks that are on one GPU, but for processes that both say that they may.
  std::optional<std::pair<std::size_t, std::size_t>> sharing_a_gpu;
};
RankTopology topology_of(const std::vector<RankTraits>& ranks);

}  // namespace lockstep::detail
