// Structured values: tensors inside tuples, vectors, maps, optionals and structs that list their fields. Hooks,
// scatter and gather walk them with the functions here.
//
// A user's struct takes part by listing its fields once:
//
//   struct Sample { Tensor image, mask; double scale;  void fields(auto& f) { f(image, mask, scale); } };
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

namespace tree {

struct Probe {
  template <class... T>
  void operator()(T&...) const {}
};
template <class T>
concept HasFields = requires(T& value, Probe& probe) { value.fields(probe); };

template <class T>
struct Kind {
  static constexpr bool is_tuple = false, is_list = false, is_map = false, is_optional = false;
};
struct KindOfTuple {
  static constexpr bool is_tuple = true, is_list = false, is_map = false, is_optional = false;
};
template <class... T>
struct Kind<std::tuple<T...>> : KindOfTuple {};
template <class A, class B>
struct Kind<std::pair<A, B>> : KindOfTuple {};
template <class T, std::size_t N>
struct Kind<std::array<T, N>> : KindOfTuple {};
template <class T>
struct Kind<std::vector<T>> {
  static constexpr bool is_tuple = false, is_list = true, is_map = false, is_optional = false;
};
template <class K, class T>
struct Kind<std::map<K, T>> {
  static constexpr bool is_tuple = false, is_list = false, is_map = true, is_optional = false;
};
template <class K, class T>
struct Kind<std::unordered_map<K, T>> : Kind<std::map<K, T>> {};
template <class T>
struct Kind<std::optional<T>> {
  static constexpr bool is_tuple = false, is_list = false, is_map = false, is_optional = true;
};

template <class T>
concept IsTuple = Kind<T>::is_tuple;
template <class T>
concept IsList = Kind<T>::is_list;
template <class T>
concept IsMap = Kind<T>::is_map;
template <class T>
concept IsOptional = Kind<T>::is_optional;

}  // namespace tree

// Calls f(Tensor&) for every defined tensor in `value`, in order. Other leaves are passed over.
template <class T, class F>
void for_each_tensor(T& value, F&& f) {
  using Bare = std::remove_const_t<T>;
  auto& node = const_cast<Bare&>(value);  // NOLINT: fields() is not const; constness comes back with the tensor
  auto each = [&](auto&... members) { (for_each_tensor(members, f), ...); };
  if constexpr (std::is_same_v<Bare, Tensor>) {
    if (node.defined()) f(static_cast<std::conditional_t<std::is_const_v<T>, const Tensor&, Tensor&>>(node));
  } else if constexpr (std::is_same_v<Bare, std::vector<bool>>) {
    // proxies; no tensors in there
  } else if constexpr (requires { node.for_each_tensor(f); }) {
    node.for_each_tensor(f);
  } else if constexpr (tree::HasFields<Bare>) {
    node.fields(each);
  } else if constexpr (tree::IsTuple<Bare>) {
    std::apply(each, node);
  } else if constexpr (tree::IsList<Bare>) {
    for (auto& element : node) for_each_tensor(element, f);
  } else if constexpr (tree::IsMap<Bare>) {
    for (auto& [key, element] : node) for_each_tensor(element, f);
  } else if constexpr (tree::IsOptional<Bare>) {
    if (node) for_each_tensor(*node, f);
  }
}

}  // namespace lockstep
