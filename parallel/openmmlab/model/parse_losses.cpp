#include "lockstep/parallel/openmmlab/model/parse_losses.h"

#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {
namespace {

bool is_loss(const std::string& name) { return name.find("loss") != std::string::npos; }

Tensor mean_of(const Tensor& tensor) {
  return mean(is_floating(tensor.dtype()) ? tensor : tensor.to(thread_context().default_dtype));
}

Tensor number_of(const std::string& name, const Value& value) {
  if (value.is(Value::Type::tensor) && value.as_tensor().defined()) return mean_of(value.as_tensor());
  LOCKSTEP_CHECK(value.is(Value::Type::list), "[parse_losses] expected '", name,
                 "' to be a tensor or a list of tensors, got ",
                 value.is(Value::Type::tensor) ? "an undefined tensor" : to_string(value.type()));
  Tensor sum;
  for (const Value& element : value.as_list()) {
    LOCKSTEP_CHECK(element.is(Value::Type::tensor) && element.as_tensor().defined(), "[parse_losses] expected '", name,
                   "' to be a tensor or a list of tensors, got a list with ",
                   element.is(Value::Type::tensor) ? "an undefined tensor" : to_string(element.type()));
    const Tensor mean = mean_of(element.as_tensor());
    sum = sum.defined() ? sum + mean : mean;
  }
  LOCKSTEP_CHECK(sum.defined(), "[parse_losses] expected '", name,
                 "' to be a tensor or a list of tensors, got an empty list");
  return sum;
}

bool there(const std::optional<Value>& value) { return value && !value->is(Value::Type::nothing); }

void add(LogVars& log, const char* name, const Value& value) {
  Value& logged = log[name];
  logged = value;
  logged.for_each_tensor([](Tensor& tensor) { tensor = tensor.detach(); });
}

}  // namespace

std::pair<Tensor, LogVars> parse_losses(const Losses& losses) {
  Tensor total;
  std::vector<std::pair<std::string, Tensor>> numbers;
  int count = 0;
  for (const auto& [name, value] : losses) {
    const Tensor number = number_of(name, value);
    numbers.emplace_back(name, number.detach());
    if (!is_loss(name)) continue;
    ++count;
    total = total.defined() ? total + number : number;
  }
  if (!total.defined()) {
    std::string names;
    for (const auto& [name, number] : numbers) names += cat(names.empty() ? "'" : ", '", name, "'");
    detail::fail<InvalidArgument>("[parse_losses] expected a loss with 'loss' in its name, got ",
                                  names.empty() ? "nothing" : names);
  }
  LogVars log;
  log["loss"] = total.detach();
  for (auto& [name, number] : numbers) {
    std::string key = name;
    if (name == "loss") {
      if (count == 1) continue;  // it is the sum
      do key += '_';
      while (losses.contains(key));
    }
    log[key] = std::move(number);
  }
  return {total, std::move(log)};
}

void detail::log_predictions(LogVars& log, const LossOutput& output) {
  if (!there(output.preds)) return;
  add(log, "vis_preds", *output.preds);
  if (there(output.masks)) add(log, "vis_masks", *output.masks);
}

}  // namespace lockstep
