// Modules: values that list their members once, and get names, traversal, saving, deep copies and replicas from it.
//
//   struct Net : Module<Net> {
//     Conv2d conv{1, 16, 3};
//     Linear head{16 * 36, 10};
//     Tensor forward(const Tensor& x) const { return head(flatten(relu(conv(x)), 1)); }
//     void members(Members& m) override { m("conv", conv); m("head", head); }
//   };
//
// Copying a module shares its parameters, mode and hooks; deep_copy does not.
#pragma once

#include <atomic>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

class ModuleBase;

// What a traversal does with each member. Given to ModuleBase::members.
class LOCKSTEP_API Members {
 public:
  virtual ~Members() = default;

  void operator()(std::string_view name, Parameter& parameter) {
    if (parameter.defined()) on_parameter(name, parameter, false);
  }
  void operator()(std::string_view name, Buffer& buffer) {
    if (buffer.defined()) on_parameter(name, buffer, true);
  }
  void operator()(std::string_view name, ModuleBase& module) { on_module(name, module); }
  template <class T>
  void operator()(std::string_view name, std::vector<T>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) (*this)(cat(name, '.', i), list[i]);
  }
  template <class T>
  void operator()(std::string_view name, std::map<std::string, T>& map) {
    for (auto& [key, value] : map) (*this)(cat(name, '.', key), value);
  }
  template <class T>
  void operator()(std::string_view name, std::optional<T>& member) {
    if (member) (*this)(name, *member);
  }

 protected:
  virtual void on_parameter(std::string_view name, Parameter& parameter, bool is_buffer) = 0;
  virtual void on_module(std::string_view name, ModuleBase& module) = 0;
  static void replace(Parameter& parameter, std::shared_ptr<ParameterBody> body) { parameter.body_ = std::move(body); }
};

// Sees the tensors in a module's arguments and results. Runs in the thread of the call: in a replica, once per replica.
using ForwardPreHook = std::function<void(const ModuleBase&, std::span<const Tensor> inputs)>;
using ForwardHook =
    std::function<void(const ModuleBase&, std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;
// Sees the gradients of a module's results (undefined where none arrived), when they are known: on the backward lane
// of the replica's device.
using BackwardHook = std::function<void(const ModuleBase&, std::span<const Tensor> output_gradients)>;

// What all copies of a module share.
struct ModuleState {
  std::atomic<bool> training{true};
  std::atomic<bool> listed{false};
  std::uint64_t next_hook = 1;
  std::vector<std::pair<std::uint64_t, ForwardPreHook>> forward_pre_hooks;
  std::vector<std::pair<std::uint64_t, ForwardHook>> forward_hooks;
  std::vector<std::pair<std::uint64_t, BackwardHook>> backward_hooks;
  bool has_hooks() const {
    return !forward_pre_hooks.empty() || !forward_hooks.empty() || !backward_hooks.empty();
  }
};

struct NamedParameter {
  std::string name;
  Parameter parameter;
};
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

class LOCKSTEP_API ModuleBase {
 public:
  ModuleBase() : state_(std::make_shared<ModuleState>()) {}
  virtual ~ModuleBase() = default;

  // Lists parameters, buffers and submodules, in order, by name. The one thing a module with members must override.
  virtual void members(Members&) {}
  // Of a wrapper (DataParallel and the like): the module it wraps. Null elsewhere.
  virtual const ModuleBase* wrapped_module() const { return nullptr; }

  // Depth first, in the order of `members`; what is listed twice (tied weights) comes once, under its first name.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<NamedParameter> named_buffers() const;
  std::vector<Parameter> parameters() const;
  std::vector<Parameter> buffers() const;

  // Mode of this module and everything below it. Throws Error inside a call of a module.
  void train(bool training = true);
  void eval() { train(false); }
  // What holds for this call: the innermost TrainingScope, else this module's mode.
  bool is_training() const;

  // Moves parameters, buffers and gradients; mirrors on other devices are dropped.
  void to(Device device);
  void to(DType dtype);  // floating parameters and buffers
  void zero_grad();      // grads become undefined
  void set_requires_grad(bool requires_grad);

  // Parameters and buffers by name (tied ones under each of their names). The tensors are the home slots themselves.
  std::vector<NamedTensor> state_dict() const;
  // Copies values in by name. Throws InvalidArgument, listing missing and unexpected names and shapes that differ,
  // before anything is changed; with strict = false only shapes must agree.
  void load_state_dict(const std::vector<NamedTensor>& state, bool strict = true);

  // Hooks return a number for remove_hook. Not to be changed during a call.
  std::uint64_t register_forward_pre_hook(ForwardPreHook hook);
  std::uint64_t register_forward_hook(ForwardHook hook);
  std::uint64_t register_backward_hook(BackwardHook hook);
  void remove_hook(std::uint64_t id);

 protected:
  std::shared_ptr<ModuleState> state_;
  friend struct ModuleInternals;

  // The parts of a call that do not depend on its types.
  class LOCKSTEP_API Call {
   public:
    explicit Call(const ModuleBase& module);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { --thread_context().module_depth; }
  };
  void run_pre_hooks(std::span<const Tensor> inputs) const;
  // Runs the forward hooks and puts the backward hooks on the outputs.
  void run_hooks(std::span<const Tensor> inputs, std::span<Tensor*> outputs) const;
};

// Base of a module: `operator()` runs the hooks around Derived::forward, which is const and may have any signature.
template <class Derived>
class Module : public ModuleBase {
 public:
  template <class... Args>
  auto operator()(Args&&... args) const {
    const auto& self = static_cast<const Derived&>(*this);
    Call call(*this);
    if (!state_->has_hooks()) [[likely]]
      return self.forward(std::forward<Args>(args)...);
    std::vector<Tensor> inputs;
    [[maybe_unused]] auto collect = [&](const Tensor& tensor) { inputs.push_back(tensor); };
    (for_each_tensor(std::as_const(args), collect), ...);
    run_pre_hooks(inputs);
    if constexpr (std::is_void_v<decltype(self.forward(std::forward<Args>(args)...))>) {
      self.forward(std::forward<Args>(args)...);
      run_hooks(inputs, {});
    } else {
      auto result = self.forward(std::forward<Args>(args)...);
      std::vector<Tensor*> outputs;
      for_each_tensor(result, [&](Tensor& tensor) { outputs.push_back(&tensor); });
      run_hooks(inputs, outputs);
      return result;
    }
  }
};

template <class T>
concept IsModule = std::derived_from<T, ModuleBase>;

namespace detail {
// Gives a copied module tree bodies of its own; ties stay ties.
LOCKSTEP_API void separate(ModuleBase& copy);
}  // namespace detail

// A module with parameters, buffers, mode and hooks of its own, equal to those of `module`.
template <IsModule M>
M deep_copy(const M& module) {
  M copy(module);
  detail::separate(copy);
  return copy;
}

// While it lives, `module` computes with `tensors` in place of its parameters (in the order of parameters()):
// functional calls, fast weights (MAML).
inline SubstituteScope substitute(const ModuleBase& module, const std::vector<Tensor>& tensors) {
  return SubstituteScope(module.parameters(), tensors);
}

}  // namespace lockstep
