// Where the elements of sharded members lie, by the names that entries of states have. Private to the library.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/parallel/sharding/sharded_unit.h"

namespace lockstep::detail {

// "state.<member>.<slot>", in an optimizer's state, of a tensor that is like the parameter `member`.
struct SlotName {
  std::string member, slot;
};
// Nothing for other entries.
std::optional<SlotName> slot_name(const std::string& entry);

struct MemberPlace {
  const ShardedFlat* flat;
  std::size_t index;

  const ShardedMember& member() const { return flat->members()[index]; }
  // The rank's run of the whole's elements, in the order of memory.
  ShardRange kept(int rank) const { return flat->kept(index, rank); }
  // That run of a whole. InvalidArgument, with the entry's name, for a tensor of another shape.
  Tensor part_of(const NamedTensor& whole, int rank) const;
};

enum class StateOf { module, optimizer };

// Tied parameters have a place under all of their names.
class MemberPlaces {
 public:
  void add(std::string name, MemberPlace place) { places_.emplace(std::move(name), place); }
  // Whose elements the entry holds in a state of that kind; null for what every rank has whole.
  const MemberPlace* find(const std::string& entry, StateOf of) const;
  const std::map<std::string, MemberPlace>& all() const { return places_; }

 private:
  std::map<std::string, MemberPlace> places_;
};

}  // namespace lockstep::detail
