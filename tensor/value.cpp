#include "lockstep/tensor/value.h"

namespace lockstep {

std::string to_string(Value::Type type) {
  switch (type) {
    case Value::Type::nothing:
      return "nothing";
    case Value::Type::boolean:
      return "bool";
    case Value::Type::integer:
      return "integer";
    case Value::Type::number:
      return "number";
    case Value::Type::string:
      return "string";
    case Value::Type::tensor:
      return "tensor";
    case Value::Type::list:
      return "list";
    case Value::Type::map:
      break;
  }
  return "map";
}

void Value::fail_type(Type wanted) const {
  detail::fail<InvalidArgument>("[Value] expected a value of type ", wanted, ", got one of type ", type());
}

double Value::as_number() const {
  if (const auto* integer = std::get_if<std::int64_t>(&content_)) return static_cast<double>(*integer);
  return get<double>(Type::number);
}

const Value& Value::at(std::size_t index) const {
  const List& list = as_list();
  LOCKSTEP_CHECK(index < list.size(), "[Value] expected an index below ", list.size(), ", got ", index);
  return list[index];
}

const Value& Value::at(std::string_view key) const {
  const Map& map = as_map();
  if (const auto found = map.find(std::string(key)); found != map.end()) return found->second;
  std::string keys;
  for (const auto& [name, value] : map) keys += cat(keys.empty() ? "'" : ", '", name, '\'');
  detail::fail<InvalidArgument>("[Value] expected one of the keys {", keys, "}, got '", key, '\'');
}

}  // namespace lockstep
