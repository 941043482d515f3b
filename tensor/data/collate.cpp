#include "lockstep/tensor/data/collate.h"

#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

void fail_collate(const char* expected, std::size_t first, std::size_t sample, std::size_t other) {
  fail<InvalidArgument>("[collate] expected ", expected, ", got ", first, " in sample 0 and ", other, " in sample ",
                        sample, " of the batch");
}

Tensor collate_tensors(const Column<Tensor>& column) {
  std::vector<Tensor> tensors;
  tensors.reserve(column.size());
  for (std::size_t i = 0; i < column.size(); ++i) {
    const Tensor &first = *column[0], &tensor = *column[i];
    if (!first.defined())
      fail<InvalidArgument>("[collate] expected tensors, got an undefined one in sample 0 of the batch");
    if (!tensor.defined() || tensor.shape() != first.shape() || tensor.dtype() != first.dtype() ||
        tensor.device() != first.device())
      fail<InvalidArgument>("[collate] expected tensors of one shape, dtype and device, got ", first,
                            " in sample 0 and ", tensor, " in sample ", i, " of the batch");
    tensors.push_back(tensor);
  }
  return stack(tensors, 0);
}

namespace {

template <class T, class Get>
Tensor numbers(const Column<Value>& column, Get get) {
  std::vector<T> elements;
  for (const Value* value : column) elements.push_back(get(*value));
  return from_data(elements, {static_cast<std::int64_t>(elements.size())});
}

}  // namespace

Value collate_values(const Column<Value>& column) {
  const Value& first = *column[0];
  for (std::size_t i = 0; i < column.size(); ++i)
    if (!column[i]->is(first.type()))
      fail<InvalidArgument>("[collate] expected values of one type, got ", first.type(), " in sample 0 and ",
                            column[i]->type(), " in sample ", i, " of the batch");
  switch (first.type()) {
    case Value::Type::nothing:
      return {};
    case Value::Type::boolean:
      return numbers<bool>(column, [](const Value& value) { return value.as_bool(); });
    case Value::Type::integer:
      return numbers<std::int64_t>(column, [](const Value& value) { return value.as_integer(); });
    case Value::Type::number:
      return numbers<double>(column, [](const Value& value) { return value.as_number(); });
    case Value::Type::string: {
      Value::List strings;
      for (const Value* value : column) strings.emplace_back(value->as_string());
      return strings;
    }
    case Value::Type::tensor:
      return collate_parts(column, 1, [](const Value& value) -> const Tensor& { return value.as_tensor(); });
    case Value::Type::list: {
      Column<Value::List> lists;
      for (const Value* value : column) lists.push_back(&value->as_list());
      return collate_column(lists);
    }
    case Value::Type::map:
      break;
  }
  Column<Value::Map> maps;
  for (const Value* value : column) maps.push_back(&value->as_map());
  return collate_column(maps);
}

}  // namespace lockstep::detail
