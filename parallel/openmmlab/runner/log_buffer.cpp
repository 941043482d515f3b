#include "lockstep/parallel/openmmlab/runner/log_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace lockstep::detail {

std::optional<double> number_in(const Value& value) {
  if (value.is(Value::Type::integer) || value.is(Value::Type::number)) return value.as_number();
  if (value.is(Value::Type::tensor) && value.as_tensor().defined() && value.as_tensor().count() == 1)
    return value.as_tensor().item<double>();
  return std::nullopt;
}

LogBuffer::Series& LogBuffer::series(const std::string& name) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const Series& s) { return s.name == name; });
  return found != all_.end() ? *found : all_.emplace_back(Series{name});
}

void LogBuffer::add(const LogVars& log) {
  for (const auto& [name, value] : log) {
    if (value.is(Value::Type::tensor)) {
      if (value.as_tensor().defined() && value.as_tensor().count() == 1)
        series(name).waiting.push_back(value.as_tensor().detach());
    } else if (const auto number = number_in(value)) {
      add(name, *number);
    }
  }
}

Numbers LogBuffer::take_means(Communicator* communicator) {
  std::string mine;  // the ranks may have logged under different names: so it is text
  for (Series& s : all_) {
    for (const Tensor& tensor : s.waiting) s.sum += tensor.item<double>(), ++s.count;
    mine += cat(s.name, '\t', s.sum, '\t', s.count, '\n');
  }
  all_.clear();
  const std::vector<std::string> ranks =
      communicator && communicator->size() > 1 ? communicator->all_gather_bytes(mine) : std::vector{mine};
  for (const std::string& text : ranks) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::size_t last_tab = text.rfind('\t', end), tab = text.rfind('\t', last_tab - 1);
      Series& s = series(text.substr(begin, tab - begin));
      s.sum += std::strtod(text.c_str() + tab + 1, nullptr);
      s.count += std::strtoll(text.c_str() + last_tab + 1, nullptr, 10);
      begin = end + 1;
    }
  }
  Numbers means;
  for (const Series& s : all_) means.emplace_back(s.name, s.sum / static_cast<double>(s.count));
  all_.clear();
  return means;
}

}  // namespace lockstep::detail
