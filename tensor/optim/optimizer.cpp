#include "lockstep/tensor/optim/optimizer.h"

#include <charconv>
#include <cmath>
#include <unordered_set>

namespace lockstep {
namespace {
void check_lr(const char* name, double lr) {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", name, "] expected a learning rate of at least 0, got ", lr);
}
}  // namespace

Optimizer::Optimizer(const char* name, std::vector<Parameter> parameters, double lr)
    : name_(name), parameters_(std::move(parameters)), lr_(lr) {
  LOCKSTEP_CHECK(!parameters_.empty(), "[", name, "] expected at least one parameter, got an empty list");
  check_lr(name, lr);
  std::unordered_set<const ParameterBody*> seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    LOCKSTEP_CHECK(parameters_[i].defined(), "[", name, "] expected parameters, got an absent one at index ", i);
    LOCKSTEP_CHECK(seen.insert(parameters_[i].body()).second, "[", name, "] expected each parameter once, got '",
                   parameters_[i].name(), "' again at index ", i);
  }
}

void Optimizer::zero_grad() {
  for (const Parameter& parameter : parameters_) parameter.zero_grad();
}

void Optimizer::set_lr(double lr) {
  check_lr(name_, lr);
  lr_ = lr;
}

std::vector<Tensor> Optimizer::load_slots(const std::vector<NamedTensor>& state, std::string_view kind) const {
  std::vector<Tensor> slots(parameters_.size());
  for (const NamedTensor& entry : state) {
    std::size_t index = parameters_.size();
    const std::string_view name = entry.name;
    const bool named = name.size() > kind.size() + 1 && name.starts_with(kind) && name[kind.size()] == '.';
    if (named) {
      const char* end = name.data() + name.size();
      if (std::from_chars(name.data() + kind.size() + 1, end, index).ptr != end) index = parameters_.size();
    }
    LOCKSTEP_CHECK(named && index < parameters_.size(), "[", name_, "] expected state named '", kind, ".0' to '", kind,
                   '.', parameters_.size() - 1, "', got '", entry.name, "'");
    const Parameter& parameter = parameters_[index];
    LOCKSTEP_CHECK(entry.tensor.defined() && entry.tensor.shape() == parameter.shape(), "[", name_, "] expected '",
                   entry.name, "' to have the shape ", parameter.shape(), " of its parameter, got ", entry.tensor);
    slots[index] = entry.tensor;
  }
  return slots;
}

}  // namespace lockstep
