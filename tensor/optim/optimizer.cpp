#include "lockstep/tensor/optim/optimizer.h"

#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

void check_lr(const char* name, double lr) {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", name, "] expected a learning rate of at least 0, got ", lr);
}

Tensor number(double value) { return tensor(value, {.dtype = DType::f64}); }
Tensor number(std::int64_t value) { return tensor(value, {.dtype = DType::i64}); }

// What does not fit, for one message about all of it.
struct Differences {
  std::string missing, unexpected, other;
  static void add(std::string& list, const std::string& what) { list += cat(list.empty() ? "" : ", ", what); }
  static const char* text(const std::string& list) { return list.empty() ? "none" : list.c_str(); }
  void check(const char* name) const {
    LOCKSTEP_CHECK(missing.empty() && unexpected.empty() && other.empty(), "[", name,
                   "] expected the state of an optimizer like this one; missing: ", text(missing),
                   "; unexpected: ", text(unexpected), "; different: ", text(other));
  }
};

// The entries of a state, taken out one by one.
class Entries {
 public:
  Entries(const char* optimizer, const std::vector<NamedTensor>& state) {
    for (const NamedTensor& entry : state) {
      LOCKSTEP_CHECK(entry.tensor.defined(), "[", optimizer, "] expected a tensor for '", entry.name,
                     "', got an undefined one");
      LOCKSTEP_CHECK(left_.emplace(entry.name, entry.tensor).second, "[", optimizer,
                     "] expected each name of a state once, got '", entry.name, "' again");
    }
  }
  // Undefined when there is none, or (which is a difference) one of another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape, DType dtype, Differences& differences) {
    const auto found = left_.find(name);
    if (found == left_.end()) return {};
    Tensor taken = found->second;
    left_.erase(found);
    if (taken.shape() == shape && taken.dtype() == dtype) return taken;
    Differences::add(differences.other,
                     cat(name, " (expected ", dtype, shape, ", got ", taken.dtype(), taken.shape(), ")"));
    return {};
  }
  void report_rest(const std::vector<NamedTensor>& state, Differences& differences) const {
    for (const NamedTensor& entry : state)
      if (left_.contains(entry.name)) Differences::add(differences.unexpected, entry.name);
  }
  bool contains(const std::string& name) const { return left_.contains(name); }

 private:
  std::unordered_map<std::string, Tensor> left_;
};

}  // namespace

Optimizer::~Optimizer() {
  if (self_) *self_ = nullptr;
}

Optimizer::Optimizer(Optimizer&& other) noexcept
    : name_(other.name_),
      layout_(std::move(other.layout_)),
      groups_(other.groups_),
      parameters_(std::move(other.parameters_)),
      group_of_(std::move(other.group_of_)),
      states_(std::move(other.states_)),
      self_(std::move(other.self_)) {
  if (self_) *self_ = this;
}

Optimizer& Optimizer::operator=(Optimizer&& other) noexcept {
  if (this == &other) return *this;
  if (self_) *self_ = nullptr;
  name_ = other.name_;
  layout_ = std::move(other.layout_);
  groups_ = other.groups_;
  parameters_ = std::move(other.parameters_);
  group_of_ = std::move(other.group_of_);
  states_ = std::move(other.states_);
  self_ = std::move(other.self_);
  if (self_) *self_ = this;
  return *this;
}

// ---- graphs

namespace {
class OptimizerValues final : public detail::Replayed {
 public:
  using Write = std::function<void(const Optimizer&, double*)>;
  using Counted = std::function<void(Optimizer&)>;
  OptimizerValues(std::shared_ptr<Optimizer*> optimizer, Write write, Counted counted)
      : optimizer_(std::move(optimizer)), write_(std::move(write)), counted_(std::move(counted)) {}
  void write(std::byte* to) override {
    if (!*optimizer_) throw Error("[replay] expected the optimizer whose step is in the graph, but it is gone");
    write_(**optimizer_, reinterpret_cast<double*>(to));
  }
  void replayed(const Stream&) noexcept override {
    if (counted_) counted_(**optimizer_);
  }

 private:
  const std::shared_ptr<Optimizer*> optimizer_;
  const Write write_;
  const Counted counted_;
};
}  // namespace

const double* Optimizer::replayed(std::size_t count, std::function<void(const Optimizer&, double*)> write,
                                  std::function<void(Optimizer&)> counted) {
  detail::Capture* const capture = detail::current_capture;
  if (!capture) [[likely]]
    return nullptr;
  if (!self_) self_ = std::make_shared<Optimizer*>(this);
  return static_cast<const double*>(capture->add(
      std::make_unique<OptimizerValues>(self_, std::move(write), std::move(counted)), count * sizeof(double)));
}

void Optimizer::check_not_first(std::size_t index) const {
  LOCKSTEP_CHECK(!detail::current_capture, "[", name_, "] expected in a capture a parameter that has made a step, got ",
                 parameters_[index].body()->describe(), " at its first one; call step() once before");
}

void Optimizer::append_group(const std::vector<Parameter>& parameters) {
  LOCKSTEP_CHECK(!parameters.empty(), "[", name_, "] expected at least one parameter, got an empty list");
  std::unordered_map<const ParameterBody*, std::size_t> seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) seen.emplace(parameters_[i].body(), group_of_[i]);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    LOCKSTEP_CHECK(parameters[i].defined(), "[", name_, "] expected parameters, got an absent one at index ", i,
                   " of group ", groups_);
    const auto [known, added] = seen.emplace(parameters[i].body(), groups_);
    LOCKSTEP_CHECK(added, "[", name_, "] expected each parameter once, got ", parameters[i].body()->describe(),
                   " again at index ", i, " of group ", groups_, "; it is in group ", known->second);
  }
  const std::size_t count = parameters_.size() + parameters.size();
  std::vector<State> states(parameters.size());
  for (State& state : states) state.slots.resize(layout_.slots.size());
  parameters_.reserve(count);
  group_of_.reserve(count);
  states_.reserve(count);
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  group_of_.resize(count, groups_);
  for (State& state : states) states_.push_back(std::move(state));
  ++groups_;
}

void Optimizer::check_group(std::size_t group) const {
  LOCKSTEP_CHECK(group < groups_, "[", name_, "] expected a group below ", groups_, ", got ", group);
}

void Optimizer::zero_grad() {
  for (const Parameter& parameter : parameters_) parameter.zero_grad();
}

std::vector<Parameter> Optimizer::group_parameters(std::size_t group) const {
  check_group(group);
  std::vector<Parameter> found;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (group_of_[i] == group) found.push_back(parameters_[i]);
  return found;
}

double Optimizer::lr(std::size_t group) const {
  check_group(group);
  return const_cast<Optimizer*>(this)->lr_of(group);  // NOLINT: reads
}

void Optimizer::set_lr(double lr) {
  check_lr(name_, lr);
  for (std::size_t group = 0; group < groups_; ++group) lr_of(group) = lr;
}

void Optimizer::set_lr(std::size_t group, double lr) {
  check_group(group);
  check_lr(name_, lr);
  lr_of(group) = lr;
}

double Optimizer::momentum(std::size_t group) const {
  check_group(group);
  const std::vector<double> all = momenta();
  return all.empty() ? 0 : all[group];
}

void Optimizer::set_momentum(double momentum) { take_momenta(std::vector<double>(groups_, momentum)); }

void Optimizer::set_momentum(std::size_t group, double momentum) {
  check_group(group);
  std::vector<double> all = momenta();
  all.resize(groups_);
  all[group] = momentum;
  take_momenta(all);
}

void Optimizer::take_momenta(const std::vector<double>& /*groups*/) {
  detail::fail<NotSupported>("[", name_, "] expected an optimizer with momentum, got one without");
}

std::vector<std::size_t> Optimizer::with_sparse_gradients() const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].sparse_grad().defined()) found.push_back(i);
  return found;
}

std::vector<Optimizer::Batch> Optimizer::batches(bool leave_out_sparse) const {
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (const SparseGradient rows = parameters_[i].sparse_grad(); rows.defined()) {
      LOCKSTEP_CHECK(leave_out_sparse, "[", name_, "] expected a dense gradient of ", parameters_[i].body()->describe(),
                     ", got ", rows, "; use SparseAdam, or SGD without momentum and weight decay");
      continue;
    }
    const Tensor gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    const Tensor parameter = parameters_[i].tensor();
    Batch* batch = nullptr;
    for (Batch& known : batches)
      if (known.group == group_of_[i] && known.device == parameter.device() && known.dtype == parameter.dtype())
        batch = &known;
    if (!batch) batch = &batches.emplace_back(Batch{group_of_[i], parameter.device(), parameter.dtype(), {}, {}});
    batch->indices.push_back(i);
    batch->gradients.push_back(gradient.contiguous(parameter.memory_format()));
  }
  return batches;
}

Tensor Optimizer::slot(std::size_t index, std::size_t which) const {
  const Tensor& known = states_[index].slots[which];
  if (!known.defined()) return {};
  // It may have been made on another stream, and is let go of by a load or with the optimizer.
  LOCKSTEP_EDGE(known.storage()->record_use(current_stream(known.device())));
  const Parameter& parameter = parameters_[index];
  if (known.shape() != parameter.shape())
    detail::fail<InvalidArgument>("[", name_, "] expected parameters that keep their shapes, got ", parameter.shape(),
                                  " for '", parameter.name(), "', of which the last step was with ", known.shape(),
                                  "; make the optimizer after the module is wrapped");
  // Where the module was moved to, as it lies there.
  return known.to(parameter.device()).to(parameter.dtype()).contiguous(parameter.tensor().memory_format());
}

Tensor Optimizer::new_slot(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  return detail::fresh_like(parameter.tensor());
}

// ---- state

std::vector<std::string> Optimizer::keys() const {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < parameters_.size(); ++i) keys.push_back(cat(i));
  return keys;
}

std::vector<std::string> Optimizer::keys(const ModuleBase& module) const {
  std::unordered_map<const ParameterBody*, std::string> names;
  for (const NamedParameter& entry : module.named_parameters()) names.emplace(entry.parameter.body(), entry.name);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = names.find(parameters_[i].body());
    LOCKSTEP_CHECK(found != names.end(), "[", name_, "] expected the module of the optimizer's parameters, got one of ",
                   names.size(), " parameters without '", parameters_[i].name(), "' (", parameters_[i].dtype(),
                   parameters_[i].shape(), ", index ", i, ")");
    keys.push_back(found->second);
  }
  return keys;
}

std::vector<NamedTensor> Optimizer::state_dict() const { return save(keys()); }
std::vector<NamedTensor> Optimizer::state_dict(const ModuleBase& module) const { return save(keys(module)); }
void Optimizer::load_state_dict(const std::vector<NamedTensor>& state) { load(state, keys()); }
void Optimizer::load_state_dict(const std::vector<NamedTensor>& state, const ModuleBase& module) {
  load(state, keys(module));
}

std::vector<NamedTensor> Optimizer::save(const std::vector<std::string>& keys) const {
  NoGrad no_grad;
  std::vector<NamedTensor> saved;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string prefix = cat("state.", keys[i], '.');
    saved.push_back({prefix + "group", number(static_cast<std::int64_t>(group_of_[i]))});
    if (states_[i].steps > 0) saved.push_back({prefix + "step", number(states_[i].steps)});
    for (std::size_t k = 0; k < layout_.slots.size(); ++k)
      if (states_[i].slots[k].defined()) saved.push_back({prefix + layout_.slots[k], slot(i, k).clone()});
  }
  for (std::size_t group = 0; group < groups_; ++group)
    for (const OptionValue& option : option_values(group))
      saved.push_back({cat("groups.", group, '.', option.name), number(option.value)});
  return saved;
}

void Optimizer::load(const std::vector<NamedTensor>& state, const std::vector<std::string>& keys) {
  NoGrad no_grad;
  Entries entries(name_, state);
  Differences differences;
  std::vector<State> fresh(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string prefix = cat("state.", keys[i], '.');
    const bool has_group = entries.contains(prefix + "group");
    const Tensor group = entries.take(prefix + "group", {}, DType::i64, differences);
    if (!has_group) Differences::add(differences.missing, prefix + "group");
    if (group.defined() && group.item<std::int64_t>() != static_cast<std::int64_t>(group_of_[i]))
      Differences::add(differences.other,
                       cat(prefix, "group (expected ", group_of_[i], ", got ", group.item<std::int64_t>(), ")"));
    bool has_step = false;
    if (layout_.counts_steps) {
      has_step = entries.contains(prefix + "step");
      if (const Tensor step = entries.take(prefix + "step", {}, DType::i64, differences); step.defined()) {
        fresh[i].steps = step.item<std::int64_t>();
        if (fresh[i].steps < 1)
          Differences::add(differences.other, cat(prefix, "step (expected at least 1, got ", fresh[i].steps, ")"));
      }
    }
    fresh[i].slots.resize(layout_.slots.size());
    for (std::size_t k = 0; k < layout_.slots.size(); ++k) {
      const std::string name = prefix + layout_.slots[k];
      const bool present = entries.contains(name);
      fresh[i].slots[k] = entries.take(name, parameters_[i].shape(), parameters_[i].dtype(), differences);
      if (!layout_.counts_steps) continue;
      if (has_step && !present && k < layout_.required) Differences::add(differences.missing, name);
      if (!has_step && present) Differences::add(differences.unexpected, cat(name, " (without a step)"));
    }
  }
  std::vector<std::vector<double>> options(groups_);
  for (std::size_t group = 0; group < groups_; ++group)
    for (const OptionValue& option : option_values(group)) {
      const std::string name = cat("groups.", group, '.', option.name);
      const bool present = entries.contains(name);
      const Tensor value = entries.take(name, {}, DType::f64, differences);
      if (!present) Differences::add(differences.missing, name);
      options[group].push_back(value.defined() ? value.item<double>() : option.value);
    }
  entries.report_rest(state, differences);
  differences.check(name_);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (Tensor& slot : fresh[i].slots)
      if (slot.defined()) slot = slot.detach().to(parameters_[i].device()).clone();
  take_option_values(options);
  states_ = std::move(fresh);
}

}  // namespace lockstep
