#include "lockstep/parallel/openmmlab/optim/optim_wrapper_dict.h"

#include <algorithm>

namespace lockstep {

OptimWrapperDict::OptimWrapperDict(std::vector<Item> items) : OptimWrapperDict() {
  for (Item& item : items) add(std::move(item.first), std::move(item.second));
}

void OptimWrapperDict::add(std::string name, std::unique_ptr<OptimWrapper> wrapper) {
  LOCKSTEP_CHECK(!name.empty() && name.find('.') == std::string::npos,
                 "[OptimWrapperDict] expected a name without dots, got '", name, "'");
  LOCKSTEP_CHECK(!contains(name), "[OptimWrapperDict] expected each name once, got '", name, "' again");
  LOCKSTEP_CHECK(wrapper, "[OptimWrapperDict] expected an OptimWrapper for '", name, "', got none");
  items_.emplace_back(std::move(name), std::move(wrapper));
}

std::string OptimWrapperDict::listed() const {
  std::string text;
  for (const auto& [name, wrapper] : items_) text += cat(text.empty() ? "" : ", ", name);
  return text;
}

const OptimWrapper& OptimWrapperDict::at(std::string_view name) const {
  for (const auto& [known, wrapper] : items_)
    if (known == name) return *wrapper;
  detail::fail<InvalidArgument>("[OptimWrapperDict] expected a name out of (", listed(), "), got '", name, "'");
}

bool OptimWrapperDict::contains(std::string_view name) const {
  return std::any_of(items_.begin(), items_.end(), [&](const Item& item) { return item.first == name; });
}

std::vector<std::string> OptimWrapperDict::names() const {
  std::vector<std::string> names;
  for (const auto& [name, wrapper] : items_) names.push_back(name);
  return names;
}

void OptimWrapperDict::zero_grad() {
  for (const auto& [name, wrapper] : items_) wrapper->zero_grad();
}

void OptimWrapperDict::initialize_count_status(const ModuleBase& model, std::int64_t init_counts,
                                               std::int64_t max_counts) {
  for (const auto& [name, wrapper] : items_) wrapper->initialize_count_status(model, init_counts, max_counts);
}

NamedNumbers OptimWrapperDict::prefixed(NamedNumbers (OptimWrapper::*numbers)() const) const {
  NamedNumbers all;
  for (const auto& [name, wrapper] : items_)
    for (auto& [key, values] : ((*wrapper).*numbers)()) all.emplace_back(cat(name, '.', key), std::move(values));
  return all;
}
NamedNumbers OptimWrapperDict::get_lr() const { return prefixed(&OptimWrapper::get_lr); }
NamedNumbers OptimWrapperDict::get_momentum() const { return prefixed(&OptimWrapper::get_momentum); }

std::vector<NamedTensor> OptimWrapperDict::state_dict() const {
  std::vector<NamedTensor> state;
  for (const auto& [name, wrapper] : items_)
    for (NamedTensor& entry : wrapper->state_dict())
      state.push_back({cat(name, '.', entry.name), std::move(entry.tensor)});
  return state;
}

void OptimWrapperDict::load_state_dict(const std::vector<NamedTensor>& state) {
  std::vector<std::vector<NamedTensor>> parts(items_.size());
  for (const NamedTensor& entry : state) {
    const std::size_t dot = entry.name.find('.');
    const auto found = std::find_if(items_.begin(), items_.end(),
                                    [&](const Item& item) { return item.first == entry.name.substr(0, dot); });
    LOCKSTEP_CHECK(dot != std::string::npos && found != items_.end(), "[OptimWrapperDict] expected the state of (",
                   listed(), "), got '", entry.name, "'");
    parts[static_cast<std::size_t>(found - items_.begin())].push_back({entry.name.substr(dot + 1), entry.tensor});
  }
  std::vector<std::vector<NamedTensor>> before;
  try {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      std::vector<NamedTensor> own = items_[i].second->state_dict();
      items_[i].second->load_state_dict(parts[i]);
      before.push_back(std::move(own));
    }
  } catch (...) {
    for (std::size_t i = 0; i < before.size(); ++i) items_[i].second->load_state_dict(before[i]);
    throw;
  }
}

void OptimWrapperDict::for_each_optimizer(const OptimizerFunction& f) {
  for (const auto& [name, wrapper] : items_)
    wrapper->for_each_optimizer([&, &outer = name](const std::string& inner, Optimizer& optimizer) {
      f(inner.empty() ? outer : cat(outer, '.', inner), optimizer);
    });
}

// ---- what each does for itself

void OptimWrapperDict::refuse(const char* call) const {
  detail::fail<NotSupported>("[OptimWrapperDict] expected ", call, " of each wrapper by itself (", listed(),
                             "), got one of all of them");
}
void OptimWrapperDict::update_params(const Tensor& /*loss*/) { refuse("update_params"); }
Tensor OptimWrapperDict::scale_loss(const Tensor& /*loss*/) const { refuse("scale_loss"); }
void OptimWrapperDict::backward(const Tensor& /*loss*/) { refuse("backward"); }
void OptimWrapperDict::step() { refuse("step"); }
bool OptimWrapperDict::should_update() const { refuse("should_update"); }
bool OptimWrapperDict::should_sync() const { refuse("should_sync"); }
void OptimWrapperDict::check_context() const { refuse("optim_context"); }

}  // namespace lockstep
