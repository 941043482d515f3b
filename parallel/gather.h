// gather: the outputs of the replicas are put together on one device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/gather_tensor.h"
#include "lockstep/parallel/gathered.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace detail {

struct GatherTarget {
  std::optional<Device> device;  // none: where replica 0's tensor is
  std::int64_t dim = 0;
};

// The outputs of all replicas, or the same part of each of them.
template <class R>
using Column = std::vector<const R*>;

// A part of each element of `column`.
template <class Part, class R, class Get>
Column<Part> part(const Column<R>& column, Get&& get) {
  Column<Part> parts;
  parts.reserve(column.size());
  for (const R* value : column) parts.push_back(&get(*value));
  return parts;
}

LOCKSTEP_API Value gather_column(const Column<Value>& column, const GatherTarget& target);
LOCKSTEP_API PackedSequence gather_column(const Column<PackedSequence>& column, const GatherTarget& target);
inline Tensor gather_column(const Column<Tensor>& column, const GatherTarget& target) {
  const bool stays = !target.device && column[0]->defined();
  return gather_tensor(column, stays ? column[0]->device() : target.device.value_or(Device::cpu()), target.dim);
}
template <class R>
gathered_t<R> gather_column(const Column<R>& column, const GatherTarget& target);

[[noreturn]] LOCKSTEP_API void fail_lengths(std::size_t first, std::size_t other, std::size_t replica);
[[noreturn]] LOCKSTEP_API void fail_keys(const std::vector<std::string>& missing,
                                         const std::vector<std::string>& unexpected, std::size_t replica);
[[noreturn]] LOCKSTEP_API void fail_presence(const std::vector<bool>& present);

template <class R, std::size_t... I>
gathered_t<R> gather_tuple(const Column<R>& column, const GatherTarget& target, std::index_sequence<I...>) {
  return {gather_column(part<std::tuple_element_t<I, R>>(
                            column, [](const R& value) -> const auto& { return std::get<I>(value); }),
                        target)...};
}

template <class T>
std::vector<gathered_t<T>> gather_list(const Column<std::vector<T>>& column, const GatherTarget& target) {
  const std::size_t length = column[0]->size();
  for (std::size_t i = 1; i < column.size(); ++i) {
    if (column[i]->size() != length) fail_lengths(length, column[i]->size(), i);
  }
  std::vector<gathered_t<T>> result;
  result.reserve(length);
  for (std::size_t k = 0; k < length; ++k) {
    if constexpr (std::is_same_v<T, bool>) {
      std::vector<bool> bits;
      for (const auto* list : column) bits.push_back((*list)[k]);
      result.push_back(std::move(bits));
    } else {
      result.push_back(
          gather_column(part<T>(column, [k](const std::vector<T>& list) -> const T& { return list[k]; }), target));
    }
  }
  return result;
}

template <class K>
std::string key_text(const K& key) {
  if constexpr (requires { cat(key); }) {
    return cat(key);
  } else {
    return "?";
  }
}

template <class M>
void check_keys(const Column<M>& column) {
  for (std::size_t i = 1; i < column.size(); ++i) {
    std::vector<std::string> missing, unexpected;
    for (const auto& [key, value] : *column[0]) {
      if (!column[i]->contains(key)) missing.push_back(key_text(key));
    }
    for (const auto& [key, value] : *column[i]) {
      if (!column[0]->contains(key)) unexpected.push_back(key_text(key));
    }
    if (!missing.empty() || !unexpected.empty()) fail_keys(missing, unexpected, i);
  }
}

template <class M>
gathered_t<M> gather_map(const Column<M>& column, const GatherTarget& target) {
  check_keys(column);
  gathered_t<M> result;
  for (const auto& entry : *column[0]) {
    const auto& key = entry.first;
    result.emplace(key, gather_column(part<typename M::mapped_type>(
                                          column, [&](const M& map) -> const auto& { return map.find(key)->second; }),
                                      target));
  }
  return result;
}

template <class T>
std::optional<gathered_t<T>> gather_optional(const Column<std::optional<T>>& column, const GatherTarget& target) {
  bool same = true;
  for (const auto* value : column) same &= value->has_value() == column[0]->has_value();
  if (!same) {
    std::vector<bool> present;
    for (const auto* value : column) present.push_back(value->has_value());
    fail_presence(present);
  }
  if (!*column[0]) return std::nullopt;
  return gather_column(part<T>(column, [](const std::optional<T>& value) -> const T& { return *value; }), target);
}

template <class Target, class T>
void gather_field(Target& field, const Column<T>& column, const GatherTarget& target) {
  if constexpr (std::is_assignable_v<Target&, gathered_t<T>>) {
    field = gather_column(column, target);
  } else {
    // forward() and gather() do not compile for such a struct; this stands in an extension point that nobody called.
    fail<NotSupported>("[gather] this struct mixes tensors with numbers: call forward_ungathered");
  }
}

template <class R>
gathered_t<R> gather_struct(const Column<R>& column, const GatherTarget& target) {
  using Result = gathered_t<R>;
  auto result = [&] {
    if constexpr (std::is_same_v<Result, R>)
      return R(*column[0]);
    else
      return Result{};
  }();
  // fields() is not const, and it alone knows the types of the fields: the columns are made inside.
  auto with_fields = [&](auto&... of_first) {
    std::tuple<Column<std::remove_reference_t<decltype(of_first)>>...> columns;
    auto add = [&](auto&... fields) { std::apply([&](auto&... lists) { (lists.push_back(&fields), ...); }, columns); };
    for (const R* value : column) const_cast<R&>(*value).fields(add);  // NOLINT: only reads
    auto assign = [&](auto&... fields) {
      static_assert(sizeof...(fields) == sizeof...(of_first), "`gathered` needs the same fields in the same order");
      std::apply([&](auto&... lists) { (gather_field(fields, lists, target), ...); }, columns);
    };
    result.fields(assign);
  };
  const_cast<R&>(*column[0]).fields(with_fields);  // NOLINT: only reads
  return result;
}

template <class R>
gathered_t<R> gather_column(const Column<R>& column, [[maybe_unused]] const GatherTarget& target) {
  if constexpr (OnePerReplica<R>) {
    std::vector<R> result;
    result.reserve(column.size());
    for (const R* value : column) result.push_back(*value);
    return result;
  } else if constexpr (std::is_same_v<gathered_t<R>, Ungatherable<R>>) {
    fail<NotSupported>("[gather] nobody knows how to gather outputs of this type: call forward_ungathered");
  } else if constexpr (tree::HasFields<R>) {
    return gather_struct(column, target);
  } else if constexpr (tree::IsTuple<R>) {
    return gather_tuple(column, target, std::make_index_sequence<std::tuple_size_v<R>>{});
  } else if constexpr (tree::IsList<R>) {
    return gather_list(column, target);
  } else if constexpr (tree::IsMap<R>) {
    return gather_map(column, target);
  } else {
    return gather_optional(column, target);
  }
}

// gather without the compile-time check that the type can be gathered.
template <class R>
gathered_t<R> gather_outputs(const std::vector<R>& outputs, const GatherTarget& target) {
  LOCKSTEP_CHECK(!outputs.empty(), "[gather] expected at least one output, got none");
  if constexpr (std::is_same_v<R, bool>) {
    return outputs;
  } else {
    Column<R> column;
    column.reserve(outputs.size());
    for (const R& output : outputs) column.push_back(&output);
    return gather_column(column, target);
  }
}

}  // namespace detail

// Puts the outputs of the replicas together on `device` (`cpu` allowed: then it blocks until the copies are done).
// Tensors are concatenated along `dim`; without dimensions (and dim 0) they become a vector with one element per
// replica, as do numbers and strings; containers and structs are gathered element by element; the packed sequences of
// all replicas are packed together, those of replica 0 first in the caller's order. Ordered on the current
// streams of the devices involved. Differentiable any number of times. A single tensor that is on `device` already is
// returned as it is, not copied: writing into it in place writes into what the replica returned.
// Throws InvalidArgument when the outputs do not fit together: ranks, other dimensions or dtypes, lengths of lists,
// keys of maps, optionals that are present in some replicas only.
template <class R>
gathered_t<R> gather(const std::vector<R>& outputs, Device device, std::int64_t dim = 0) {
  detail::Gathered<R>::check();
  return detail::gather_outputs(outputs, {device, dim});
}

}  // namespace lockstep
