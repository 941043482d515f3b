// Structured values: tensors inside tuples, vectors, maps, optionals, variants and structs that list their fields.
// Hooks, scatter and gather walk them with the functions here (gather no variants: which alternative would the whole
// have?).
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
#include <variant>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

namespace tree {

struct Probe {
  template <class... T>
  void operator()(T&...) const {}
};
template <class T>
concept HasFields = requires(T& value, Probe& probe) {
  value.fields(probe);
};

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
inline constexpr bool is_variant = false;
template <class... T>
inline constexpr bool is_variant<std::variant<T...>> = true;

template <class T>
concept IsTuple = Kind<T>::is_tuple;
template <class T>
concept IsList = Kind<T>::is_list;
template <class T>
concept IsMap = Kind<T>::is_map;
template <class T>
concept IsOptional = Kind<T>::is_optional;

// ---- Types that hold tensors which nobody would find

// `In`: the types that T is a part of, which may have parts of their own type.
template <class T, class... In>
consteval bool finds_tensors();
template <class T, class... In>
consteval bool holds_tensors();
template <class T, class... In>
consteval bool hides_tensors();
template <class T>
void check_tensors_found();

// Stands for any value, and for any value with or without tensors, where a struct is tried with initialisers.
struct AnyValue {
  template <class T>
  operator T() const;
};
template <bool tensors, class... In>
struct AnyWith {
  template <class T>
  requires(holds_tensors<T, In...>() == tensors) operator T() const;
};
// Whether the aggregate T has a member with tensors among its first ones. One that takes anything, as std::any does,
// says nothing.
template <class T, class... In, std::size_t... Before>
consteval bool takes_tensors_after(std::index_sequence<Before...>) {
  return requires { T{(static_cast<void>(Before), AnyValue{})..., AnyWith<true, T, In...>{}}; }
  &&!requires { T{(static_cast<void>(Before), AnyValue{})..., AnyWith<false, T, In...>{}}; };
}
template <class T, class... In, std::size_t... At>
consteval bool takes_tensors(std::index_sequence<At...>) {
  return (takes_tensors_after<T, In...>(std::make_index_sequence<At>{}) || ...);
}

template <class... T>
struct Types {};
template <class T>
struct ElementsOf;
template <template <class...> class C, class... T>
struct ElementsOf<C<T...>> {
  template <class... In>
  static consteval bool find() {
    return (finds_tensors<T, In...>() || ...);
  }
  template <class... In>
  static consteval bool hide() {
    return (hides_tensors<T, In...>() || ...);
  }
  static void check_found() { (check_tensors_found<T>(), ...); }
};
template <class T, std::size_t N>
struct ElementsOf<std::array<T, N>> : ElementsOf<Types<T>> {};

// Whether for_each_tensor may find tensors in values of type T.
template <class T, class... In>
consteval bool finds_tensors() {
  if constexpr (std::is_same_v<T, Tensor> || HasFields<T> ||
                requires(T & value, Probe & f) { value.for_each_tensor(f); })
    return true;
  else if constexpr (IsTuple<T> || IsList<T> || IsMap<T> || IsOptional<T> || is_variant<T>)
    return ElementsOf<T>::template find<In...>();
  else
    return false;
}
// The same, or would if it knew the type.
template <class T, class... In>
consteval bool holds_tensors() {
  if constexpr ((std::is_same_v<T, In> || ...))
    return false;  // but for what else is in there
  else
    return finds_tensors<T, In...>() || hides_tensors<T, In...>();
}
// Whether it would pass some over: containers that it does not know, structs that do not list their fields.
template <class T, class... In>
consteval bool hides_tensors() {
  if constexpr ((std::is_same_v<T, In> || ...))
    return false;
  else if constexpr (std::is_same_v<T, Tensor> || requires(T & value, Probe & f) { value.for_each_tensor(f); } ||
                     HasFields<T>)
    return false;
  else if constexpr (IsTuple<T> || IsList<T> || IsMap<T> || IsOptional<T> || is_variant<T>)
    return ElementsOf<T>::template hide<In...>();
  else if constexpr (requires {
                       typename T::value_type;
                       std::declval<T&>().begin();
                     })
    return !std::is_same_v<typename T::value_type, T> && holds_tensors<typename T::value_type, In...>();
  else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>)
    return takes_tensors<T, In...>(std::make_index_sequence<16>{});
  else
    return false;
}

struct FoundInFields {
  template <class... T>
  void operator()(T&...) const {
    (check_tensors_found<T>(), ...);
  }
};
// Does not compile for a type, or one inside it, that hides tensors.
template <class T>
void check_tensors_found() {
  static_assert(!hides_tensors<T>(),
                "tensors in here would be passed over: a struct must list its fields, "
                "void fields(auto& f) { f(image, mask); }, and of containers std::vector, array, map, unordered_map, "
                "tuple, pair, optional and variant are known");
  if constexpr (HasFields<T>) {
    [[maybe_unused]] const auto look = [](T& value) {
      const FoundInFields fields;
      value.fields(fields);
    };
  } else if constexpr (IsTuple<T> || IsList<T> || IsMap<T> || IsOptional<T> || is_variant<T>) {
    ElementsOf<T>::check_found();
  }
}

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
  } else if constexpr (tree::is_variant<Bare>) {
    std::visit(each, node);
  }
}

}  // namespace lockstep
