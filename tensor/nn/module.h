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
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/nn/read_gate.h"
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
// Sees the gradients of a module's results (undefined where none arrived), when they are known: on the backward
// thread of the replica's device.
using BackwardHook = std::function<void(const ModuleBase&, std::span<const Tensor> grad_outputs)>;

// The hooks of one kind, in order. A change makes a new list: a call goes through the list it began with.
template <class Hook>
class HookList {
 public:
  using Entries = std::vector<std::pair<std::uint64_t, Hook>>;
  std::shared_ptr<const Entries> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  bool empty() const { return entries()->empty(); }
  void set(std::shared_ptr<const Entries> entries) {
    const std::lock_guard lock(mutex_);
    entries_.swap(entries);  // the old hooks go after the lock: what they own may change hooks itself
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Entries> entries_ = std::make_shared<const Entries>();
};

// What all copies of a module share.
struct ModuleState {
  std::atomic<bool> training{true};
  std::atomic<bool> listed{false};
  std::atomic<bool> names_checked{false};
  std::atomic<bool> has_hooks{false};
  std::mutex hooks_change;  // one change at a time
  std::uint64_t next_hook = 1;
  HookList<ForwardPreHook> forward_pre_hooks;
  HookList<ForwardHook> forward_hooks;
  HookList<BackwardHook> backward_hooks;
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
  // Throws InvalidArgument when two members have one name.
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
  // Parameters and buffers of four dimensions; the others stay as they are. The gradient of a parameter has its format.
  // A convolution whose weight is channels_last gives results in that format, whatever its input is in.
  void to(MemoryFormat format);
  void zero_grad();  // grads become undefined
  void set_requires_grad(bool requires_grad);

  // Parameters and buffers by name (tied ones under each of their names). The tensors are the home slots themselves.
  std::vector<NamedTensor> state_dict() const;
  // Copies values in by name. Throws InvalidArgument, listing missing and unexpected names and shapes that differ,
  // before anything is changed; with strict = false only shapes must agree.
  // Other threads may call the module meanwhile, by itself, in replicas or through a DataParallel: each call computes
  // with the old elements or with the new ones, all of them. Waits until the calls that read them have ended, with the
  // default deadline; Error inside such a call.
  void load_state_dict(const std::vector<NamedTensor>& state, bool strict = true);

  // Returns a number for remove_hook. Hooks may be added and removed at any time, by any thread, also by a hook: calls
  // that have begun go on with the hooks they had. A hook sees tensors and replaces none, so it returns nothing.
  template <class F>
  std::uint64_t register_forward_pre_hook(F&& hook) {
    static_assert(std::is_void_v<std::invoke_result_t<F&, const ModuleBase&, std::span<const Tensor>>>,
                  "a forward pre-hook sees the arguments and cannot replace them: it must return void");
    return add_forward_pre_hook(ForwardPreHook(std::forward<F>(hook)));
  }
  template <class F>
  std::uint64_t register_forward_hook(F&& hook) {
    static_assert(
        std::is_void_v<std::invoke_result_t<F&, const ModuleBase&, std::span<const Tensor>, std::span<const Tensor>>>,
        "a forward hook sees the results and cannot replace them: it must return void");
    return add_forward_hook(ForwardHook(std::forward<F>(hook)));
  }
  // Also: the module object that was called must be there until the backward, as the hook gets it; a copy that
  // `for (auto layer : layers)` makes is not.
  template <class F>
  std::uint64_t register_backward_hook(F&& hook) {
    static_assert(std::is_void_v<std::invoke_result_t<F&, const ModuleBase&, std::span<const Tensor>>>,
                  "a backward hook sees the gradients and cannot replace them: it must return void");
    return add_backward_hook(BackwardHook(std::forward<F>(hook)));
  }
  void remove_hook(std::uint64_t id);
  bool has_hooks() const { return state_->has_hooks.load(std::memory_order_acquire); }

 protected:
  std::shared_ptr<ModuleState> state_;
  friend struct ModuleInternals;

  // The parts of a call that do not depend on its types.
  class LOCKSTEP_API CallScope {
   public:
    explicit CallScope(const ModuleBase& module);
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    ~CallScope() { --thread_context().module_depth; }

   private:
    std::optional<Reading> reading_;  // of the outermost call
  };
  void run_pre_hooks(std::span<const Tensor> inputs) const;
  std::uint64_t add_forward_pre_hook(ForwardPreHook hook);
  std::uint64_t add_forward_hook(ForwardHook hook);
  std::uint64_t add_backward_hook(BackwardHook hook);
  // To be called while an InvalidArgument is handled: throws it on, with the name of this module unless it has one.
  [[noreturn]] void rethrow_named() const;
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
    const CallScope scope(*this);
    try {
      return call_forward(self, std::forward<Args>(args)...);
    } catch (const InvalidArgument&) {
      rethrow_named();
    }
  }

 private:
  template <class... Args>
  auto call_forward(const Derived& self, Args&&... args) const {
    if (!has_hooks()) [[likely]]
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
