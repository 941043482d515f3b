// A value whose type is known at run time only: nothing, a bool, a number, a string, a tensor, a list or a map of
// values. For programs that learn the shape of their data while they run; others pass their own types.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

class LOCKSTEP_API Value {
 public:
  enum class Type : std::uint8_t { nothing, boolean, integer, number, string, tensor, list, map };
  using List = std::vector<Value>;
  using Map = std::map<std::string, Value>;

  Value() = default;  // nothing
  template <std::same_as<bool> B>
  Value(B value) : content_(value) {}  // NOLINT: a value of any of these types is a Value
  // Throws InvalidArgument for an unsigned number above the largest int64.
  template <std::integral I>
  requires(!std::same_as<I, bool>) Value(I value) : content_(checked(value)) {}  // NOLINT
  Value(double value) : content_(value) {}                                       // NOLINT
  Value(float value) : content_(double{value}) {}                                // NOLINT
  Value(const char* text) : content_(std::string(text)) {}                       // NOLINT
  Value(std::string_view text) : content_(std::string(text)) {}                  // NOLINT
  Value(std::string text) : content_(std::move(text)) {}                         // NOLINT
  Value(Tensor tensor) : content_(std::move(tensor)) {}                          // NOLINT
  Value(List list) : content_(std::move(list)) {}                                // NOLINT
  Value(Map map) : content_(std::move(map)) {}                                   // NOLINT

  Type type() const { return static_cast<Type>(content_.index()); }
  bool is(Type type) const { return this->type() == type; }

  // The content, by type; each throws InvalidArgument, naming the type asked for and the type found.
  bool as_bool() const { return get<bool>(Type::boolean); }
  std::int64_t as_integer() const { return get<std::int64_t>(Type::integer); }
  double as_number() const;  // of an integer too
  const std::string& as_string() const { return get<std::string>(Type::string); }
  const Tensor& as_tensor() const { return get<Tensor>(Type::tensor); }
  const List& as_list() const { return get<List>(Type::list); }
  const Map& as_map() const { return get<Map>(Type::map); }
  std::string& as_string() { return mutate<std::string>(Type::string); }
  Tensor& as_tensor() { return mutate<Tensor>(Type::tensor); }
  List& as_list() { return mutate<List>(Type::list); }
  Map& as_map() { return mutate<Map>(Type::map); }

  // An element of a list or a map; InvalidArgument when there is none, naming what there is.
  const Value& at(std::size_t index) const;
  const Value& at(std::string_view key) const;

  // Calls f(Tensor&) for every defined tensor in here, in order (maps: by key). See tree.h.
  template <class F>
  void for_each_tensor(F&& f) {
    if (auto* tensor = std::get_if<Tensor>(&content_)) {
      if (tensor->defined()) f(*tensor);
    } else if (auto* list = std::get_if<List>(&content_)) {
      for (Value& element : *list) element.for_each_tensor(f);
    } else if (auto* map = std::get_if<Map>(&content_)) {
      for (auto& [key, element] : *map) element.for_each_tensor(f);
    }
  }

 private:
  template <std::integral I>
  static std::int64_t checked(I value) {
    if constexpr (std::unsigned_integral<I> && sizeof(I) >= sizeof(std::int64_t)) {
      LOCKSTEP_CHECK(value <= static_cast<I>(std::numeric_limits<std::int64_t>::max()),
                     "[Value] expected a number that fits int64, got ", value);
    }
    return static_cast<std::int64_t>(value);
  }
  template <class T>
  const T& get(Type wanted) const {
    if (const T* content = std::get_if<T>(&content_)) [[likely]]
      return *content;
    fail_type(wanted);
  }
  template <class T>
  T& mutate(Type wanted) {
    return const_cast<T&>(std::as_const(*this).template get<T>(wanted));  // NOLINT: *this is not const
  }
  [[noreturn]] void fail_type(Type wanted) const;

  // In the order of Type.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Tensor, List, Map> content_;
};

LOCKSTEP_API std::string to_string(Value::Type type);

}  // namespace lockstep
