// Calls of modules: what happens around forward, and hooks.
#include <algorithm>
#include <iterator>
#include <typeinfo>
#include <utility>

#include "lockstep/runtime/check_function.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/nn/interrupt.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/module_internals.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/surrounding_hooks.h"

namespace lockstep {

namespace {
// In the numbers of hooks around all others, which are the first before a forward and the last after it.
constexpr std::uint64_t kSurrounds = std::uint64_t{1} << 63;

template <class Hook>
void insert(ModuleState& state, HookList<Hook>& list, std::uint64_t id, Hook hook, bool first) {
  auto entries = *list.entries();
  auto place = first ? entries.begin() : entries.end();
  if (!first && !detail::surrounds(id))
    while (place != entries.begin() && detail::surrounds(std::prev(place)->first)) --place;
  entries.emplace(place, id, std::move(hook));
  list.set(std::make_shared<const typename HookList<Hook>::Entries>(std::move(entries)));
  state.has_hooks.store(true, std::memory_order_release);
}

template <class Hook>
std::uint64_t add(ModuleState& state, HookList<Hook>& list, Hook hook) {
  detail::check_function("register_hook", hook);
  const std::lock_guard lock(state.hooks_change);
  const std::uint64_t id = state.next_hook++;
  insert(state, list, id, std::move(hook), false);
  return id;
}

// Gives the old list back: it goes when no lock is held.
template <class Hook>
auto remove(HookList<Hook>& list, std::uint64_t id) {
  auto old = list.entries();
  auto entries = *old;
  if (std::erase_if(entries, [&](const auto& entry) { return entry.first == id; }) > 0)
    list.set(std::make_shared<const typename HookList<Hook>::Entries>(std::move(entries)));
  return old;
}
}  // namespace

bool detail::surrounds(std::uint64_t id) { return (id & kSurrounds) != 0; }

std::uint64_t detail::surround(ModuleBase& module, ForwardPreHook enter, ForwardHook leave) {
  ModuleState& state = *ModuleInternals::state(module);
  const std::lock_guard lock(state.hooks_change);
  const std::uint64_t id = state.next_hook++ | kSurrounds;
  insert(state, state.forward_pre_hooks, id, std::move(enter), true);
  insert(state, state.forward_hooks, id, std::move(leave), false);
  return id;
}

std::uint64_t ModuleBase::add_forward_pre_hook(ForwardPreHook hook) {
  return add(*state_, state_->forward_pre_hooks, std::move(hook));
}
std::uint64_t ModuleBase::add_forward_hook(ForwardHook hook) {
  return add(*state_, state_->forward_hooks, std::move(hook));
}
std::uint64_t ModuleBase::add_backward_hook(BackwardHook hook) {
  return add(*state_, state_->backward_hooks, std::move(hook));
}

void ModuleBase::remove_hook(std::uint64_t id) {
  ModuleState& state = *state_;
  std::unique_lock lock(state.hooks_change);
  const auto pre = remove(state.forward_pre_hooks, id);
  const auto forward = remove(state.forward_hooks, id);
  const auto backward = remove(state.backward_hooks, id);
  state.has_hooks.store(
      !state.forward_pre_hooks.empty() || !state.forward_hooks.empty() || !state.backward_hooks.empty(),
      std::memory_order_release);
  lock.unlock();
}

namespace {
// Of all that the module lists, which gets its name thereby.
void share_gate(const ModuleBase& module) {
  std::vector<ParameterBody*> bodies;
  for (const bool buffers : {false, true})
    for (const NamedParameter& entry : (buffers ? module.named_buffers() : module.named_parameters()))
      bodies.push_back(entry.parameter.body());
  detail::share_gate(bodies);
}
}  // namespace

namespace detail {
namespace {
constinit thread_local const std::function<void()>* interrupt = nullptr;
}

InterruptScope::InterruptScope(const std::function<void()>& check) : outer_(std::exchange(interrupt, &check)) {}
InterruptScope::~InterruptScope() { interrupt = outer_; }
}  // namespace detail

void check_interrupt() {
  if (detail::interrupt) [[unlikely]]
    (*detail::interrupt)();
}

ModuleBase::CallScope::CallScope(const ModuleBase& module) {
  check_interrupt();
  // The outermost module names its members, so that a parameter nobody lists is found out in backward.
  ThreadContext& context = thread_context();
  if (context.module_depth == 0) {
    if (!module.state_->listed.load(std::memory_order_acquire)) {
      share_gate(module);
      module.state_->listed.store(true, std::memory_order_release);
    }
    context.outermost_module = &module;
    reading_.emplace();
  }
  ++context.module_depth;
}

namespace {
struct NamedInvalidArgument final : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};
}  // namespace

void ModuleBase::rethrow_named() const {
  const ModuleBase* const outermost = thread_context().outermost_module;
  if (!outermost || outermost == this || outermost->wrapped_module() == this) throw;
  try {
    throw;
  } catch (const InvalidArgument& error) {
    // Named already, or of a type of the caller's own, which must come through: no handler can ask for exactly one
    // type.
    if (typeid(error) != typeid(InvalidArgument)) throw;
    std::string path;
    MemberVisitor visitor;
    visitor.module = [&](ModuleBase& module) {
      if (&module == this) path = visitor.path();
    };
    visitor.visit(*outermost);
    if (path.empty()) throw;  // it is no member: made for the call
    throw NamedInvalidArgument(cat(error.what(), " (in the module '", path, "')"));
  }
}

namespace {
// Hooks may read what they see.
void check_seen(const Tensor& tensor) {
  if (tensor.defined()) detail::check_present(*tensor.identity());
}
}  // namespace

void ModuleBase::run_pre_hooks(std::span<const Tensor> inputs) const {
  for (const Tensor& input : inputs) check_seen(input);
  const auto hooks = state_->forward_pre_hooks.entries();
  for (const auto& [id, hook] : *hooks) hook(*this, inputs);
}

namespace {
// Passes the gradients of a module's results through and shows them to the hooks.
class BackwardHookNode final : public NodeOfMany {
 public:
  const char* name() const override { return "backward_hook"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const auto entries = state->backward_hooks.entries();
    for (const auto& [id, hook] : *entries) hook(*module, grad_outputs);
    for (std::size_t i = 0; i < grad_outputs.size(); ++i) grad_inputs[i] = grad_outputs[i];
  }
  std::shared_ptr<ModuleState> state;
  const ModuleBase* module = nullptr;  // must outlive the graph, as its parameters' names do
};
}  // namespace

void ModuleBase::run_hooks(std::span<const Tensor> inputs, std::span<Tensor*> outputs) const {
  if (const auto hooks = state_->forward_hooks.entries(); !hooks->empty()) {
    std::vector<Tensor> results;
    for (Tensor* output : outputs) check_seen(results.emplace_back(*output));
    for (const auto& [id, hook] : *hooks) hook(*this, inputs, results);
  }
  if (state_->backward_hooks.empty() || !GradMode::enabled()) return;
  std::vector<Tensor*> tracked;
  for (Tensor* output : outputs)
    if (output->requires_grad()) tracked.push_back(output);
  if (tracked.empty()) return;
  Ref<BackwardHookNode> node(new BackwardHookNode);
  node->state = state_;
  node->module = this;
  node->set_inputs(tracked.size());
  node->output_count = static_cast<std::uint32_t>(tracked.size());
  for (std::uint32_t i = 0; i < tracked.size(); ++i) {
    node->edges()[i] = tracked[i]->edge();
    Tensor passed = tracked[i]->detach();
    detail::attach(*node, passed, i);
    *tracked[i] = passed;
  }
}

}  // namespace lockstep
