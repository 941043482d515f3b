// Names in an optimizer's state. Private to the library.
#pragma once

#include <optional>
#include <string>

namespace lockstep::detail {

// "state.<member>.<slot>" of a tensor that is like the parameter `member`.
struct SlotName {
  std::string member, slot;
};
// Nothing for other entries.
std::optional<SlotName> slot_name(const std::string& entry);

}  // namespace lockstep::detail
