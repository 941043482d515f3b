#include "lockstep/parallel/sharding/member_places.h"

#include <string_view>

namespace lockstep::detail {

std::optional<SlotName> slot_name(const std::string& entry) {
  constexpr std::string_view kPrefix = "state.";
  const std::size_t dot = entry.rfind('.');
  if (!entry.starts_with(kPrefix) || dot == std::string::npos || dot <= kPrefix.size()) return std::nullopt;
  SlotName name{entry.substr(kPrefix.size(), dot - kPrefix.size()), entry.substr(dot + 1)};
  if (name.slot == "step" || name.slot == "group") return std::nullopt;
  return name;
}

Tensor MemberPlace::part_of(const NamedTensor& whole, int rank) const {
  LOCKSTEP_CHECK(whole.tensor.shape() == member().shape, "[load_whole_state_dict] expected ", member().shape, " for '",
                 whole.name, "', got ", whole.tensor.shape());
  const ShardRange run = kept(rank);
  return in_memory_order(whole.tensor, member().format).narrow(0, run.begin, run.count);
}

const MemberPlace* MemberPlaces::find(const std::string& entry, StateOf of) const {
  std::string name = entry;
  if (of == StateOf::optimizer) {
    const std::optional<SlotName> slot = slot_name(entry);
    if (!slot) return nullptr;
    name = slot->member;
  }
  const auto at = places_.find(name);
  return at == places_.end() ? nullptr : &at->second;
}

}  // namespace lockstep::detail
