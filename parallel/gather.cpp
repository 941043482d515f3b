#include "lockstep/parallel/gather.h"

namespace lockstep::detail {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += cat(text.empty() ? "'" : ", '", word, '\'');
  return text;
}

Value gather_lists(const Column<Value>& column, const GatherTarget& target) {
  const std::size_t length = column[0]->as_list().size();
  for (std::size_t i = 1; i < column.size(); ++i) {
    if (column[i]->as_list().size() != length) fail_lengths(length, column[i]->as_list().size(), i);
  }
  Value::List result;
  result.reserve(length);
  for (std::size_t k = 0; k < length; ++k) {
    result.push_back(gather_column(
        part<Value>(column, [k](const Value& value) -> const Value& { return value.as_list()[k]; }), target));
  }
  return result;
}

}  // namespace

void fail_lengths(std::size_t first, std::size_t other, std::size_t replica) {
  fail<InvalidArgument>("[gather] expected lists of one length, got ", first, " from replica 0 and ", other,
                        " from replica ", replica);
}

void fail_keys(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
               std::size_t replica) {
  fail<InvalidArgument>("[gather] expected the keys of replica 0 from replica ", replica, ", got none for {",
                        join(missing), "} and beside them {", join(unexpected), "}");
}

void fail_presence(const std::vector<bool>& present) {
  std::string with, without;
  for (std::size_t i = 0; i < present.size(); ++i) {
    std::string& text = present[i] ? with : without;
    text += cat(text.empty() ? "" : ", ", i);
  }
  fail<InvalidArgument>("[gather] expected an optional output from every replica or from none, got one from replicas [",
                        with, "] and none from replicas [", without, "]");
}

Value gather_column(const Column<Value>& column, const GatherTarget& target) {
  const Value::Type type = column[0]->type();
  for (std::size_t i = 1; i < column.size(); ++i) {
    LOCKSTEP_CHECK(column[i]->is(type), "[gather] expected values of one type, got a ", type, " from replica 0 and a ",
                   column[i]->type(), " from replica ", i);
  }
  switch (type) {
    case Value::Type::nothing:
      return {};
    case Value::Type::tensor:
      return gather_column(part<Tensor>(column, [](const Value& value) -> const Tensor& { return value.as_tensor(); }),
                           target);
    case Value::Type::list:
      return gather_lists(column, target);
    case Value::Type::map:
      return gather_map(
          part<Value::Map>(column, [](const Value& value) -> const Value::Map& { return value.as_map(); }), target);
    default:
      break;
  }
  Value::List one_per_replica;
  one_per_replica.reserve(column.size());
  for (const Value* value : column) one_per_replica.push_back(*value);
  return one_per_replica;
}

PackedSequence gather_column(const Column<PackedSequence>& column, const GatherTarget& target) {
  for (const PackedSequence* sequences : column)
    if (sequences->data.defined()) sequences->check("gather");
  const Column<Tensor> parts =
      part<Tensor>(column, [](const PackedSequence& sequences) -> const Tensor& { return sequences.data; });
  const Tensor rows = gather_column(parts, {target.device, 0});
  return rows.defined() ? PackedSequence::join(column, rows) : PackedSequence();
}

}  // namespace lockstep::detail
