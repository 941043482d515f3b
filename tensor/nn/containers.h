// Modules that hold others, or parameters, and list them under their positions or keys. Like every module they are
// values: a copy shares the parameters. They have no forward; whoever holds them calls what is inside.
//
//   struct Net : Module<Net> {
//     ModuleList<Linear> layers;
//     Tensor forward(Tensor x) const { for (const Linear& layer : layers) x = relu(layer(x)); return x; }
//     void members(Members& m) override { m("layers", layers); }  // layers.0.weight, layers.0.bias, layers.1.weight, …
//   };
//
// Modules of different types stand in a chain (sequential.h), or each under a name of its own.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

namespace detail {

// Items by position, under the names "0", "1", …
template <class T>
class ListOf : public ModuleBase {
 public:
  ListOf() = default;
  explicit ListOf(std::vector<T> items) : items_(std::move(items)) {}

  void push_back(T item) { items_.push_back(std::move(item)); }
  std::size_t count() const { return items_.size(); }
  // Throw InvalidArgument when there is no such item.
  T& operator[](std::size_t index) { return items_[checked(index)]; }
  const T& operator[](std::size_t index) const { return items_[checked(index)]; }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  void members(Members& m) override {
    for (std::size_t i = 0; i < items_.size(); ++i) m(std::to_string(i), items_[i]);
  }

 private:
  std::size_t checked(std::size_t index) const {
    LOCKSTEP_CHECK(index < items_.size(), "[list] expected an index below ", items_.size(), ", got ", index);
    return index;
  }
  std::vector<T> items_;
};

// Items by key, in the order in which they were added.
template <class T>
class DictOf : public ModuleBase {
 public:
  using Item = std::pair<std::string, T>;
  DictOf() = default;
  DictOf(std::initializer_list<Item> items) {
    for (const Item& item : items) insert(item.first, item.second);
  }

  // Throws InvalidArgument for a key that is there already, is empty, or has a dot (which separates names).
  void insert(std::string key, T item) {
    LOCKSTEP_CHECK(!key.empty() && key.find('.') == std::string::npos, "[dict] expected a key without a dot, got '",
                   key, "'");
    LOCKSTEP_CHECK(!contains(key), "[dict] expected a new key, got '", key, "'");
    items_.emplace_back(std::move(key), std::move(item));
  }
  std::size_t count() const { return items_.size(); }
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  // Throw InvalidArgument when there is no such key.
  T& operator[](std::string_view key) { return const_cast<Item*>(checked(key))->second; }
  const T& operator[](std::string_view key) const { return checked(key)->second; }
  auto begin() { return items_.begin(); }  // over pairs of key and item
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  void members(Members& m) override {
    for (auto& [key, item] : items_) m(key, item);
  }

 private:
  const Item* find(std::string_view key) const {
    for (const Item& item : items_)
      if (item.first == key) return &item;
    return nullptr;
  }
  const Item* checked(std::string_view key) const {
    const Item* found = find(key);
    LOCKSTEP_CHECK(found != nullptr, "[dict] expected a key that it has, got '", std::string(key), "'");
    return found;
  }
  std::vector<Item> items_;
};

}  // namespace detail

template <IsModule M>
class ModuleList : public detail::ListOf<M> {
 public:
  using detail::ListOf<M>::ListOf;
};
template <IsModule M>
class ModuleDict : public detail::DictOf<M> {
 public:
  using detail::DictOf<M>::DictOf;
};
class ParameterList : public detail::ListOf<Parameter> {
 public:
  using ListOf::ListOf;
};
class ParameterDict : public detail::DictOf<Parameter> {
 public:
  using DictOf::DictOf;
};

}  // namespace lockstep
