// Makes one batch of samples.
//
// Tensors are stacked along a new first dimension. Numbers become a tensor of one dimension: of their own dtype where
// Lockstep has it, else i64. Strings become a vector. Tuples, vectors, maps, optionals and Values are taken apart,
// element by element; so are structs that list their fields (tree.h). A struct with tensors only stays itself; one
// with numbers or strings says `using collated = Other;`, a struct with the same fields in the same order and the
// collated types in their place.
//
// A type with rules of its own (DataContainer, of the layer above) has
//
//   static R collate_samples(const std::vector<const T*>& samples, std::int64_t samples_per_device);
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/tree.h"
#include "lockstep/tensor/value.h"

namespace lockstep {
namespace detail {

template <class T>
struct Uncollatable {};

template <class T>
using Column = std::vector<const T*>;

template <class T>
concept CollatesItself = requires(const Column<T>& samples, std::int64_t samples_per_device) {
  T::collate_samples(samples, samples_per_device);
};

template <class T>
struct Collated {
  static auto choose() {
    if constexpr (std::same_as<T, Tensor> || std::same_as<T, Value>)
      return std::type_identity<T>{};
    else if constexpr (std::is_arithmetic_v<T>)
      return std::type_identity<Tensor>{};
    else if constexpr (std::same_as<T, std::string>)
      return std::type_identity<std::vector<std::string>>{};
    else if constexpr (CollatesItself<T>)
      return std::type_identity<decltype(T::collate_samples(Column<T>{}, 1))>{};
    else if constexpr (requires { typename T::collated; })
      return std::type_identity<typename T::collated>{};
    else if constexpr (tree::HasFields<T>)
      return std::type_identity<T>{};
    else
      return std::type_identity<Uncollatable<T>>{};
  }
  using type = typename decltype(choose())::type;
  static_assert(!std::same_as<type, Uncollatable<T>>,
                "collate does not know this type: give it fields(), or give the loader a collate function");
};
template <class... T>
struct Collated<std::tuple<T...>> {
  using type = std::tuple<typename Collated<T>::type...>;
};
template <class A, class B>
struct Collated<std::pair<A, B>> {
  using type = std::pair<typename Collated<A>::type, typename Collated<B>::type>;
};
template <class T, std::size_t N>
struct Collated<std::array<T, N>> {
  using type = std::array<typename Collated<T>::type, N>;
};
template <class T>
struct Collated<std::vector<T>> {
  using type = std::vector<typename Collated<T>::type>;
};
template <class K, class T>
struct Collated<std::map<K, T>> {
  using type = std::map<K, typename Collated<T>::type>;
};
template <class K, class T>
struct Collated<std::unordered_map<K, T>> {
  using type = std::unordered_map<K, typename Collated<T>::type>;
};
template <class T>
struct Collated<std::optional<T>> {
  using type = std::optional<typename Collated<T>::type>;
};

LOCKSTEP_API Tensor collate_tensors(const Column<Tensor>& column);
LOCKSTEP_API Value collate_values(const Column<Value>& column);
[[noreturn]] LOCKSTEP_API void fail_collate(const char* expected, std::size_t first, std::size_t sample,
                                            std::size_t other);

// T as a tensor element.
template <class T>
using ElementOf = std::conditional_t<
    std::is_floating_point_v<T>, std::conditional_t<std::same_as<T, float>, float, double>,
    std::conditional_t<std::same_as<T, bool> || std::same_as<T, std::uint8_t> || std::same_as<T, std::int32_t>, T,
                       std::int64_t>>;

template <class T>
typename Collated<T>::type collate_column(const Column<T>& column, std::int64_t per_device = 1);

template <class T, class Part>
auto collate_parts(const Column<T>& column, std::int64_t per_device, Part&& part) {
  using Element = std::remove_cvref_t<decltype(part(*column[0]))>;
  Column<Element> parts;
  for (const T* value : column) parts.push_back(&part(*value));
  return collate_column(parts, per_device);
}

// fields() alone knows the types of a struct's fields: the columns are made inside.
template <class T>
typename Collated<T>::type collate_fields(const Column<T>& column, std::int64_t per_device) {
  typename Collated<T>::type result;
  auto with_fields = [&](auto&... of_first) {
    std::tuple<Column<std::remove_cvref_t<decltype(of_first)>>...> columns;
    auto add = [&](auto&... fields) { std::apply([&](auto&... lists) { (lists.push_back(&fields), ...); }, columns); };
    for (const T* value : column) const_cast<T&>(*value).fields(add);  // NOLINT: only reads
    auto assign = [&](auto&... fields) {
      static_assert(sizeof...(fields) == sizeof...(of_first), "`collated` needs the same fields in the same order");
      static_assert((std::same_as<std::remove_cvref_t<decltype(fields)>,
                                  typename Collated<std::remove_cvref_t<decltype(of_first)>>::type> &&
                     ...),
                    "this struct's batch needs other types than its samples: give it `using collated = Other;`, a "
                    "struct with the "
                    "same fields in the same order, tensors in place of numbers and vectors in place of strings");
      std::apply([&](auto&... lists) { ((fields = collate_column(lists, per_device)), ...); }, columns);
    };
    result.fields(assign);
  };
  const_cast<T&>(*column[0]).fields(with_fields);  // NOLINT: only reads
  return result;
}

template <class T>
typename Collated<T>::type collate_column(const Column<T>& column, [[maybe_unused]] std::int64_t per_device) {
  using Result = typename Collated<T>::type;
  if constexpr (std::same_as<T, Tensor>) {
    return collate_tensors(column);
  } else if constexpr (std::same_as<T, Value>) {
    return collate_values(column);
  } else if constexpr (std::is_arithmetic_v<T>) {
    std::vector<ElementOf<T>> elements;
    for (const T* value : column) elements.push_back(static_cast<ElementOf<T>>(*value));
    return from_data(elements, {static_cast<std::int64_t>(elements.size())});
  } else if constexpr (std::same_as<T, std::string>) {
    Result strings;
    for (const T* value : column) strings.push_back(*value);
    return strings;
  } else if constexpr (tree::IsTuple<T>) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Result{collate_parts(
          column, per_device, [](const T& value) -> const auto& { return std::get<I>(value); })...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (tree::IsList<T>) {
    static_assert(!std::same_as<T, std::vector<bool>>, "a vector<bool> has no elements to point at: use uint8_t");
    Result result;
    for (std::size_t i = 0; i < column.size(); ++i)
      if (column[i]->size() != column[0]->size())
        fail_collate("lists of one length", column[0]->size(), i, column[i]->size());
    for (std::size_t at = 0; at < column[0]->size(); ++at)
      result.push_back(collate_parts(
          column, per_device, [at](const T& value) -> const auto& { return value[at]; }));
    return result;
  } else if constexpr (tree::IsMap<T>) {
    Result result;
    for (std::size_t i = 0; i < column.size(); ++i)
      if (column[i]->size() != column[0]->size())
        fail_collate("maps with the same keys", column[0]->size(), i, column[i]->size());
    for (const auto& [key, element] : *column[0]) {
      for (std::size_t i = 0; i < column.size(); ++i)
        if (column[i]->find(key) == column[i]->end()) fail_collate("maps with the same keys", 1, i, 0);
      const auto& name = key;
      result.emplace(
          name, collate_parts(
                    column, per_device, [&name](const T& value) -> const auto& { return value.find(name)->second; }));
    }
    return result;
  } else if constexpr (tree::IsOptional<T>) {
    for (std::size_t i = 0; i < column.size(); ++i)
      if (column[i]->has_value() != column[0]->has_value())
        fail_collate("optionals that all have a value or none", column[0]->has_value(), i, column[i]->has_value());
    if (!*column[0]) return std::nullopt;
    return collate_parts(
        column, per_device, [](const T& value) -> const auto& { return *value; });
  } else if constexpr (CollatesItself<T>) {
    return T::collate_samples(column, per_device);
  } else {
    return collate_fields(column, per_device);
  }
}

}  // namespace detail

// What collate makes of samples of type T.
template <class T>
using CollatedOf = typename detail::Collated<T>::type;

// One batch of at least one sample. On cpu, computed in the calling thread. What is divided among devices when it is
// collated (DataContainer) gets a part for every `samples_per_device` samples, the last of which may have fewer. Throws
// InvalidArgument when samples differ in shape, length or keys, naming their positions in the batch.
template <class T>
CollatedOf<T> collate(const std::vector<T>& samples, std::int64_t samples_per_device = 1) {
  LOCKSTEP_CHECK(!samples.empty(), "[collate] expected at least one sample, got none");
  LOCKSTEP_CHECK(samples_per_device >= 1, "[collate] expected at least one sample per device, got ",
                 samples_per_device);
  detail::Column<T> column;
  for (const T& sample : samples) column.push_back(&sample);
  return detail::collate_column(column, samples_per_device);
}

}  // namespace lockstep
