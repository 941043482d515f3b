#include "lockstep/parallel/openmmlab/model/named_values.h"

#include "lockstep/runtime/error.h"

namespace lockstep {

NamedValues::NamedValues(std::initializer_list<Item> items) {
  items_.reserve(items.size());
  for (const Item& item : items) {
    LOCKSTEP_CHECK(!contains(item.first), "[NamedValues] expected each name once, got '", item.first, "' twice");
    items_.push_back(item);
  }
}

Value& NamedValues::operator[](std::string_view name) {
  if (const Item* found = find(name)) return const_cast<Item*>(found)->second;  // NOLINT: this object is not const
  return items_.emplace_back(std::string(name), Value()).second;
}

const Value& NamedValues::at(std::string_view name) const {
  if (const Item* found = find(name)) return found->second;
  std::string names;
  for (const Item& item : items_) names += cat(names.empty() ? "" : ", ", item.first);
  detail::fail<InvalidArgument>("[NamedValues] expected a name out of (", names, "), got '", name, "'");
}

const NamedValues::Item* NamedValues::find(std::string_view name) const {
  for (const Item& item : items_)
    if (item.first == name) return &item;
  return nullptr;
}

}  // namespace lockstep
