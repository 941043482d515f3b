#include "lockstep/tensor/nn/module.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

struct ModuleInternals {
  static std::shared_ptr<ModuleState>& state(ModuleBase& module) { return module.state_; }
  static const std::shared_ptr<ModuleState>& state(const ModuleBase& module) { return module.state_; }
};

namespace {

// Visits every parameter, buffer and module below one, with their full names.
class Walk : public Members {
 public:
  std::function<void(const std::string& name, Parameter&, bool is_buffer)> parameter;
  std::function<void(ModuleBase&)> module;

  void start(const ModuleBase& root) {
    auto& mutable_root = const_cast<ModuleBase&>(root);  // NOLINT: members() lists, it changes nothing by itself
    if (module) module(mutable_root);
    mutable_root.members(*this);
  }

 protected:
  void on_parameter(std::string_view name, Parameter& member, bool is_buffer) override {
    if (parameter) parameter(cat(prefix_, name), member, is_buffer);
  }
  void on_module(std::string_view name, ModuleBase& member) override {
    const std::size_t length = prefix_.size();
    prefix_ += cat(name, '.');
    if (module) module(member);
    member.members(*this);
    prefix_.resize(length);
  }

 public:
  using Members::replace;  // rebinds a handle (for separate())
  // Of the module that is being visited; empty for the root.
  std::string path() const { return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1); }

 private:
  std::string prefix_;
};

// Two members of one name could be neither saved nor loaded.
class DistinctNames {
 public:
  void add(const std::string& name) {
    LOCKSTEP_CHECK(names_.insert(name).second, "[members] expected members with names of their own, got '", name,
                   "' twice");
  }

 private:
  std::unordered_set<std::string> names_;
};

// The first time that a module is traversed. Most modules list the same members always.
void check_names(const ModuleBase& module) {
  std::atomic<bool>& checked = ModuleInternals::state(module)->names_checked;
  if (checked.load(std::memory_order_relaxed)) return;
  DistinctNames names;
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter&, bool) { names.add(name); };
  walk.start(module);
  checked.store(true, std::memory_order_relaxed);
}

std::vector<NamedParameter> collect(const ModuleBase& module, bool buffers) {
  check_names(module);
  std::vector<NamedParameter> found;
  std::unordered_set<const ParameterBody*> seen;
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter& member, bool is_buffer) {
    ParameterBody* body = member.body();
    if (!body->listed) {
      body->listed = true;
      body->name = name;
    }
    if (is_buffer == buffers && seen.insert(body).second) found.push_back({name, member});
  };
  walk.start(module);
  return found;
}

std::vector<Parameter> without_names(std::vector<NamedParameter> named) {
  std::vector<Parameter> parameters;
  for (NamedParameter& entry : named) parameters.push_back(std::move(entry.parameter));
  return parameters;
}

// A parameter's value and gradient where they are to go. All of a module's are made before the first one goes there.
struct Move {
  ParameterBody* body;
  Tensor value, grad;  // no value: nothing but the dtype is known of it yet
  SparseGradient sparse;

  Move(ParameterBody& of, Device device, DType dtype) : body(&of) {
    const auto moved = [&](const Tensor& part) { return part.defined() ? part.to(device).to(dtype) : Tensor(); };
    value = moved(body->home.defined() ? body->home.detach() : Tensor());
    if (!body->leaf) return;
    const auto& leaf = static_cast<const LeafNode&>(*body->leaf);
    grad = moved(leaf.grad);
    sparse = leaf.sparse;
    sparse.values = moved(sparse.values);
    if (sparse.defined()) sparse.indices = sparse.indices.to(device);
  }
};

// Gives a parameter's home slot other elements; mirrors and slabs belong to the old place. Graphs that are still to run
// keep what they have saved, and bring their gradients to the new place.
void rehome(const Move& move) {
  ParameterBody& body = *move.body;
  if (move.value.identity() == body.home.identity()) return;
  if (body.slabs) detail::leave_slabs(body);
  body.drop_slots();
  move.value.storage()->set_version(body.home.version() + 1);  // what was saved of a frozen one is void
  body.home.set_data(move.value);
  body.dtype = move.value.dtype();
  if (body.leaf) {
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    leaf.move_to(move.value.device(), move.value.dtype());
    leaf.grad = move.grad;
    leaf.sparse = move.sparse;
  }
}

// Of all that the module lists, which gets its name thereby.
void share_gate(const ModuleBase& module) {
  std::vector<ParameterBody*> bodies;
  for (const bool buffers : {false, true})
    for (const NamedParameter& entry : collect(module, buffers)) bodies.push_back(entry.parameter.body());
  detail::share_gate(bodies);
}

}  // namespace

std::vector<NamedParameter> ModuleBase::named_parameters() const { return collect(*this, false); }
std::vector<NamedParameter> ModuleBase::named_buffers() const { return collect(*this, true); }
std::vector<Parameter> ModuleBase::parameters() const { return without_names(named_parameters()); }
std::vector<Parameter> ModuleBase::buffers() const { return without_names(named_buffers()); }

void ModuleBase::train(bool training) {
  if (thread_context().module_depth > 0)
    throw Error("[train] expected a change of mode outside of module calls, got one inside; use TrainingScope");
  Walk walk;
  walk.module = [&](ModuleBase& module) { ModuleInternals::state(module)->training = training; };
  walk.start(*this);
}

bool ModuleBase::is_training() const {
  const std::int8_t scope = thread_context().training;
  return scope >= 0 ? scope != 0 : state_->training.load(std::memory_order_relaxed);
}

void ModuleBase::to(Device device) {
  ordinal(device);  // an absent device is an error before anything moves
  NoGrad no_grad;
  std::vector<Move> moves;
  std::vector<ParameterBody*> uninitialised;
  Walk walk;
  walk.parameter = [&](const std::string&, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (!body->home.defined())
      uninitialised.push_back(body);
    else if (body->home.device() != device)
      moves.emplace_back(*body, device, body->dtype);
  };
  walk.start(*this);
  for (ParameterBody* body : uninitialised) body->placed = device;
  for (const Move& move : moves)
    if (move.body->home.device() != device) rehome(move);  // else met under another name
}

void ModuleBase::to(DType dtype) {
  LOCKSTEP_CHECK(is_floating(dtype), "[to] expected a floating dtype for a module, got ", dtype);
  NoGrad no_grad;
  std::vector<Move> moves;
  Walk walk;
  walk.parameter = [&](const std::string&, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (is_floating(body->dtype) && body->dtype != dtype)
      moves.emplace_back(*body, body->home.defined() ? body->home.device() : Device::cpu(), dtype);
  };
  walk.start(*this);
  for (const Move& move : moves) {
    if (move.body->dtype == dtype) continue;  // met under another name
    if (move.value.defined())
      rehome(move);
    else
      move.body->dtype = dtype;
  }
}

void ModuleBase::zero_grad() {
  for (const Parameter& parameter : parameters())
    if (parameter.body()->home.defined() && parameter.requires_grad()) parameter.zero_grad();
}

void ModuleBase::set_requires_grad(bool requires_grad) {
  for (const Parameter& parameter : parameters())
    if (is_floating(parameter.dtype())) parameter.set_requires_grad(requires_grad);
}

std::vector<NamedTensor> ModuleBase::state_dict() const {
  std::vector<NamedTensor> state;
  DistinctNames names;
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter& member, bool) {
    names.add(name);
    state.push_back({name, member.tensor()});
  };
  walk.start(*this);
  return state;
}

void ModuleBase::load_state_dict(const std::vector<NamedTensor>& state, bool strict) {
  std::unordered_map<std::string, const Tensor*> given;
  for (const NamedTensor& entry : state) given[entry.name] = &entry.tensor;
  std::vector<std::pair<Parameter, Tensor>> assignments;
  std::string missing, differing;
  DistinctNames names;
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter& member, bool) {
    names.add(name);
    auto found = given.find(name);
    if (found == given.end()) {
      missing += cat(missing.empty() ? "" : ", ", name);
      return;
    }
    if (found->second->shape() != member.shape())
      differing += cat(differing.empty() ? "" : ", ", name, " (expected ", member.shape(), ", got ",
                       found->second->shape(), ")");
    assignments.emplace_back(member, *found->second);
    given.erase(found);
  };
  walk.start(*this);
  std::string unexpected;
  for (const NamedTensor& entry : state)
    if (given.contains(entry.name)) unexpected += cat(unexpected.empty() ? "" : ", ", entry.name);
  LOCKSTEP_CHECK(differing.empty() && (!strict || (missing.empty() && unexpected.empty())),
                 "[load_state_dict] expected the names and shapes of the module; missing: ",
                 missing.empty() ? "none" : missing, "; unexpected: ", unexpected.empty() ? "none" : unexpected,
                 "; other shapes: ", differing.empty() ? "none" : differing);
  LOCKSTEP_CHECK(!assignments.empty() || missing.empty(),
                 "[load_state_dict] expected a state of the module, got none of its names; missing: ", missing,
                 "; unexpected: ", unexpected.empty() ? "none" : unexpected);
  detail::assign_all("load_state_dict", assignments);
}

// ---- hooks

namespace {
template <class Hook>
std::uint64_t add(ModuleState& state, HookList<Hook>& list, Hook hook) {
  LOCKSTEP_CHECK(hook, "[register_hook] expected a function, got an empty one");
  const std::lock_guard lock(state.hooks_change);
  auto entries = *list.entries();
  entries.emplace_back(state.next_hook, std::move(hook));
  list.set(std::make_shared<const typename HookList<Hook>::Entries>(std::move(entries)));
  state.has_hooks.store(true, std::memory_order_release);
  return state.next_hook++;
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

ModuleBase::CallScope::CallScope(const ModuleBase& module) {
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
    if (typeid(error) != typeid(InvalidArgument)) throw;  // named already, or a type that somebody waits for
    std::string path;
    Walk walk;
    walk.module = [&](ModuleBase& module) {
      if (&module == this) path = walk.path();
    };
    walk.start(*outermost);
    if (path.empty()) throw;  // it is no member: made for the call
    throw NamedInvalidArgument(cat(error.what(), " (in the module '", path, "')"));
  }
}

void ModuleBase::run_pre_hooks(std::span<const Tensor> inputs) const {
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
    for (Tensor* output : outputs) results.push_back(*output);
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

// ---- deep copies

namespace detail {
void separate(ModuleBase& copy) {
  NoGrad no_grad;
  const auto gate = std::make_shared<ReadGate>();
  std::unordered_map<const ParameterBody*, std::shared_ptr<ParameterBody>> copies;
  Walk walk;
  walk.parameter = [&](const std::string&, Parameter& member, bool is_buffer) {
    ParameterBody* old = member.body();
    std::shared_ptr<ParameterBody>& fresh = copies[old];
    if (!fresh) {
      fresh = old->home.defined()
                  ? std::make_shared<ParameterBody>(old->home.detach().clone(), is_buffer, old->home.requires_grad())
                  : std::make_shared<ParameterBody>(old->shape, old->dtype);
      fresh->name = old->name;
      fresh->listed = old->listed;
      fresh->placed = old->placed;
      fresh->sparse = old->sparse;
      fresh->set_gate(gate);
    }
    Walk::replace(member, fresh);
  };
  std::unordered_map<const ModuleState*, std::shared_ptr<ModuleState>> states;
  walk.module = [&](ModuleBase& module) {
    std::shared_ptr<ModuleState>& state = ModuleInternals::state(module);
    std::shared_ptr<ModuleState>& fresh = states[state.get()];
    if (fresh) {
      state = fresh;
      return;
    }
    fresh = std::make_shared<ModuleState>();
    fresh->training = state->training.load();
    fresh->listed = state->listed.load();
    const std::lock_guard lock(state->hooks_change);
    fresh->next_hook = state->next_hook;
    fresh->forward_pre_hooks.set(state->forward_pre_hooks.entries());
    fresh->forward_hooks.set(state->forward_hooks.entries());
    fresh->backward_hooks.set(state->backward_hooks.entries());
    fresh->has_hooks = state->has_hooks.load();
    state = fresh;
  };
  walk.start(copy);
}
}  // namespace detail

}  // namespace lockstep
