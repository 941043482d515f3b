// What optimizers have in common: parameters in groups, a learning rate per group, state that can be saved.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// Like the tensors it works on, an optimizer is used by one thread at a time.
class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&& other) noexcept;
  Optimizer& operator=(Optimizer&& other) noexcept;

  // Moves every parameter that has a gradient by it; the others stay. Computes on the current streams of the
  // parameters' devices, without blocking the host and outside any graph of autograd. In a capture
  // (runtime/graph/graph.h) it is recorded, and each replay counts as a step, with the learning rate there is by then.
  // Other options stay as they were, and what a first step makes must be there: InvalidArgument otherwise.
  virtual void step() = 0;
  // Leaves every grad undefined.
  void zero_grad();

  const char* name() const { return name_; }  // "SGD", "Adam", "AdamW"
  // Of all groups, group after group.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // ---- groups: numbered from 0, each with options of its own
  std::size_t group_count() const { return groups_; }
  std::vector<Parameter> group_parameters(std::size_t group) const;
  double lr(std::size_t group = 0) const;
  // Of every group, or of one. Throws InvalidArgument unless finite and at least 0.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  // The option `momentum`, or beta1 of the Adam family; 0 of an optimizer without one.
  double momentum(std::size_t group = 0) const;
  // Of every group, or of one. Throws, before anything is changed, NotSupported for an optimizer without momentum and
  // InvalidArgument for a value that does not fit the other options.
  void set_momentum(double momentum);
  void set_momentum(std::size_t group, double momentum);

  // ---- state: copies of what step() remembers of each parameter, the number of its group, and the groups' options
  // ("state.3.exp_avg", "state.3.step", "state.3.group", "groups.0.lr"). Parameters go by their index, or by their name
  // in `module`, which must have all of them.
  std::vector<NamedTensor> state_dict() const;
  std::vector<NamedTensor> state_dict(const ModuleBase& module) const;
  // Takes over such a state, options included; the tensors are copied to where the parameters are. Throws
  // InvalidArgument, before anything is changed, when names, shapes, dtypes, groups or options do not fit.
  void load_state_dict(const std::vector<NamedTensor>& state);
  void load_state_dict(const std::vector<NamedTensor>& state, const ModuleBase& module);

 protected:
  struct Layout {
    std::vector<const char*> slots;  // the tensors that a parameter may have, shaped like it
    std::size_t required = 0;        // how many of them, from the first, go with a step count
    bool counts_steps = false;
  };
  struct State {
    std::int64_t steps = 0;
    std::vector<Tensor> slots;  // undefined before they are written
  };
  struct OptionValue {
    const char* name;
    double value;
  };
  // Parameters that are updated in one launch.
  struct Batch {
    std::size_t group;
    Device device;
    DType dtype;
    std::vector<std::size_t> indices;
    std::vector<Tensor> gradients;  // contiguous
  };

  Optimizer(const char* name, Layout layout) : name_(name), layout_(std::move(layout)) {}

  // Makes them the next group. Throws InvalidArgument, before anything is changed, for an empty list, an absent
  // parameter, or one that the optimizer has already.
  void append_group(const std::vector<Parameter>& parameters);
  void check_group(std::size_t group) const;

  // Of the parameters with dense gradients. Throws InvalidArgument, naming the parameter, for a sparse one, unless
  // those are to be left out.
  std::vector<Batch> batches(bool leave_out_sparse = false) const;
  // The indices of the parameters with sparse gradients.
  std::vector<std::size_t> with_sparse_gradients() const;
  std::size_t group_of(std::size_t index) const { return group_of_[index]; }
  // The tensor that step() remembers, where the parameter is now; undefined when there is none yet.
  Tensor slot(std::size_t index, std::size_t which) const;
  Tensor new_slot(std::size_t index) const;  // not initialised
  State& state(std::size_t index) { return states_[index]; }
  const State& state(std::size_t index) const { return states_[index]; }

  // In a capture: memory of the device with `count` numbers, which `write` fills before each replay by what the options
  // and states are then; `counted` comes after it. Null, and nothing is kept, elsewhere.
  const double* replayed(std::size_t count, std::function<void(const Optimizer&, double*)> write,
                         std::function<void(Optimizer&)> counted = {});
  // Throws InvalidArgument in a capture: what step() has to remember of the parameter is not there.
  void check_not_first(std::size_t index) const;

  virtual std::vector<OptionValue> option_values(std::size_t group) const = 0;
  // Sets the options of all groups, each in the order of option_values. Throws before anything is changed.
  virtual void take_option_values(const std::vector<std::vector<double>>& groups) = 0;
  virtual double& lr_of(std::size_t group) = 0;
  // Momentums by group; empty where there are none.
  virtual std::vector<double> momenta() const { return {}; }
  // Sets all of them. Throws InvalidArgument before anything is changed.
  virtual void take_momenta(const std::vector<double>& groups);

 private:
  std::vector<std::string> keys(const ModuleBase& module) const;
  std::vector<std::string> keys() const;
  std::vector<NamedTensor> save(const std::vector<std::string>& keys) const;
  void load(const std::vector<NamedTensor>& state, const std::vector<std::string>& keys);

  const char* name_;
  Layout layout_;
  std::size_t groups_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> group_of_;  // by parameter
  std::vector<State> states_;          // by parameter
  std::shared_ptr<Optimizer*> self_;   // where it is, for graphs; null without
};

// An optimizer whose groups have `Options`. A `Group` names parameters and those options in which it differs from the
// defaults.
template <class Options, class Group>
class GroupedOptimizer : public Optimizer {
 public:
  const Options& options(std::size_t group = 0) const {
    check_group(group);
    return options_[group];
  }
  // Throws InvalidArgument for options that make no sense.
  void set_options(std::size_t group, const Options& options) {
    check_group(group);
    options.check(name());
    options_[group] = options;
  }
  // Options that the group does not name are those that the optimizer was made with. Throws InvalidArgument, before
  // anything is changed, for such options, an empty list, and parameters that the optimizer has already.
  void add_group(const Group& group) {
    const Options options = group.over(defaults_);
    options.check(name());
    options_.reserve(options_.size() + 1);
    append_group(group.parameters);
    options_.push_back(options);
  }

 protected:
  GroupedOptimizer(const char* name, Layout layout, const std::vector<Group>& groups, const Options& defaults)
      : Optimizer(name, std::move(layout)), defaults_(defaults) {
    defaults_.check(name);
    LOCKSTEP_CHECK(!groups.empty(), "[", name, "] expected at least one group of parameters, got an empty list");
    for (const Group& group : groups) add_group(group);
  }

  std::vector<OptionValue> option_values(std::size_t group) const override {
    std::vector<OptionValue> values;
    Options::fields(options_[group], [&](const char* field, const auto& value) {
      values.push_back({field, static_cast<double>(value)});
    });
    return values;
  }
  void take_option_values(const std::vector<std::vector<double>>& groups) override {
    std::vector<Options> fresh = options_;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      auto next = groups[i].begin();
      Options::fields(fresh[i], [&]<class T>(const char* field, T& value) {
        const double given = *next++;
        LOCKSTEP_CHECK((!std::same_as<T, bool> || given == 0 || given == 1), "[", name(), "] expected 0 or 1 for ",
                       field, ", got ", given);
        value = static_cast<T>(given);
      });
      fresh[i].check(name());
    }
    options_ = std::move(fresh);
  }
  double& lr_of(std::size_t group) override { return options_[group].lr; }
  std::vector<double> momenta() const override {
    std::vector<double> momenta;
    for (Options options : options_)
      if (const double* momentum = momentum_in(options)) momenta.push_back(*momentum);
    return momenta;
  }
  void take_momenta(const std::vector<double>& groups) override {
    std::vector<Options> fresh = options_;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      double* momentum = momentum_in(fresh[i]);
      if (!momentum) return Optimizer::take_momenta(groups);
      *momentum = groups[i];
      fresh[i].check(name());
    }
    options_ = std::move(fresh);
  }

 private:
  static double* momentum_in(Options& options) {
    if constexpr (requires { options.momentum; })
      return &options.momentum;
    else if constexpr (requires { options.betas.first; })
      return &options.betas.first;
    else
      return nullptr;
  }

  Options defaults_;
  std::vector<Options> options_;
};

}  // namespace lockstep
