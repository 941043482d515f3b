// What gather makes of a type: the same for every number of devices.
#pragma once

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/tensor/nn/packed_sequence.h"
#include "lockstep/tensor/tree.h"
#include "lockstep/tensor/value.h"

namespace lockstep {
namespace detail {

// The result type where gather has no meaning; using it is the compile error of check().
template <class R>
struct Ungatherable {};

template <class R>
concept SaysHow = requires {
  typename R::gathered;
};

// A number or a string: gathers to a vector with one per replica.
template <class R>
concept OnePerReplica = std::is_arithmetic_v<R> || std::is_enum_v<R> || std::same_as<R, std::string>;

template <class R>
struct Gathered {
  static auto choose() {
    if constexpr (std::same_as<R, Tensor> || std::same_as<R, Value> || std::same_as<R, PackedSequence>)
      return std::type_identity<R>{};
    else if constexpr (OnePerReplica<R>)
      return std::type_identity<std::vector<R>>{};
    else if constexpr (SaysHow<R>)
      return std::type_identity<typename R::gathered>{};
    else if constexpr (tree::HasFields<R>)
      return std::type_identity<R>{};
    else
      return std::type_identity<Ungatherable<R>>{};
  }
  using type = typename decltype(choose())::type;

  struct Fields {
    template <class... T>
    void operator()(T&...) const {
      static_assert((std::same_as<typename Gathered<T>::type, T> && ...),
                    "this struct mixes tensors with numbers or strings, of which there will be one per replica: give "
                    "it `using gathered = Other;`, a struct with the same fields in the same order and vectors in "
                    "their place, or call forward_ungathered");
      (Gathered<T>::check(), ...);
    }
  };
  // Does not compile for a type that cannot be gathered.
  static void check() {
    if constexpr (std::same_as<type, Ungatherable<R>>) {
      static_assert(!std::same_as<type, Ungatherable<R>>,
                    "gather does not know this type: give it fields() and `using gathered = …;`, or call "
                    "forward_ungathered");
    } else if constexpr (tree::HasFields<R> && !SaysHow<R>) {
      [[maybe_unused]] const auto look = [](R& value) {
        const Fields fields;
        value.fields(fields);
      };
    }
  }
};

template <class... T>
struct GatheredElements {
  static void check() { (Gathered<T>::check(), ...); }
};
template <class... T>
struct Gathered<std::tuple<T...>> : GatheredElements<T...> {
  using type = std::tuple<typename Gathered<T>::type...>;
};
template <class A, class B>
struct Gathered<std::pair<A, B>> : GatheredElements<A, B> {
  using type = std::pair<typename Gathered<A>::type, typename Gathered<B>::type>;
};
template <class T, std::size_t N>
struct Gathered<std::array<T, N>> : GatheredElements<T> {
  using type = std::array<typename Gathered<T>::type, N>;
};
template <class T>
struct Gathered<std::vector<T>> : GatheredElements<T> {
  using type = std::vector<typename Gathered<T>::type>;
};
template <class K, class T>
struct Gathered<std::map<K, T>> : GatheredElements<T> {
  using type = std::map<K, typename Gathered<T>::type>;
};
template <class K, class T>
struct Gathered<std::unordered_map<K, T>> : GatheredElements<T> {
  using type = std::unordered_map<K, typename Gathered<T>::type>;
};
template <class T>
struct Gathered<std::optional<T>> : GatheredElements<T> {
  using type = std::optional<typename Gathered<T>::type>;
};
template <>
struct Gathered<void> {
  using type = void;
  static void check() {}
};

}  // namespace detail

// The static type of gathered outputs of type R. A tensor stays a tensor, a number or string becomes a vector with one
// per replica, containers are taken element by element. A struct with fields stays itself when all its fields do; one
// with numbers says `using gathered = Other;` (same fields, same order, vectors for the numbers).
template <class R>
using gathered_t = typename detail::Gathered<R>::type;

}  // namespace lockstep
