// Values by name, in the order in which they were set: the losses of a model, and what is logged of a step.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/value.h"

namespace lockstep {

class LOCKSTEP_API NamedValues {
 public:
  using Item = std::pair<std::string, Value>;
  NamedValues() = default;
  // Throws InvalidArgument for a name that comes twice.
  NamedValues(std::initializer_list<Item> items);

  // The value of that name; added at the end, as nothing, where there is none.
  Value& operator[](std::string_view name);
  // Throws InvalidArgument that lists the names there are.
  const Value& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  std::size_t count() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  // See tree.h.
  template <class F>
  void for_each_tensor(F&& f) {
    for (Item& item : items_) item.second.for_each_tensor(f);
  }

 private:
  const Item* find(std::string_view name) const;
  std::vector<Item> items_;
};

using Losses = NamedValues;   // "loss_cls": a tensor, or a list of tensors; "acc": a tensor that is only logged
using LogVars = NamedValues;  // "loss" first

}  // namespace lockstep
