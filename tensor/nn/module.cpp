#include "lockstep/tensor/nn/module.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/nn/mirror.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

struct ModuleInternals {
  static std::shared_ptr<ModuleState>& state(ModuleBase& module) { return module.state_; }
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
  // Rebinds a handle (for separate()).
 public:
  using Members::replace;

 private:
  std::string prefix_;
};

std::vector<NamedParameter> collect(const ModuleBase& module, bool buffers) {
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

// Gives a parameter's home slot other elements; mirrors and slabs belong to the old place.
void rehome(const Move& move) {
  ParameterBody& body = *move.body;
  if (move.value.identity() == body.home.identity()) return;
  if (body.slabs) detail::leave_slabs(body);
  body.drop_slots();
  body.home.set_data(move.value);
  body.dtype = move.value.dtype();
  if (body.leaf) {
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    LOCKSTEP_EDGE(leaf.stream = &current_stream(move.value.device()));
    leaf.dtype = move.value.dtype();
    leaf.grad = move.grad;
    leaf.sparse = move.sparse;
  }
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
  Walk walk;
  walk.parameter = [&](const std::string&, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (body->home.defined() && body->home.device() != device) moves.emplace_back(*body, device, body->dtype);
  };
  walk.start(*this);
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
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter& member, bool) { state.push_back({name, member.tensor()}); };
  walk.start(*this);
  return state;
}

void ModuleBase::load_state_dict(const std::vector<NamedTensor>& state, bool strict) {
  std::unordered_map<std::string, const Tensor*> given;
  for (const NamedTensor& entry : state) given[entry.name] = &entry.tensor;
  std::vector<std::pair<Parameter, const Tensor*>> assignments;
  std::string missing, differing;
  Walk walk;
  walk.parameter = [&](const std::string& name, Parameter& member, bool) {
    auto found = given.find(name);
    if (found == given.end()) {
      missing += cat(missing.empty() ? "" : ", ", name);
      return;
    }
    if (found->second->shape() != member.shape())
      differing += cat(differing.empty() ? "" : ", ", name, " (expected ", member.shape(), ", got ",
                       found->second->shape(), ")");
    assignments.emplace_back(member, found->second);
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
  for (auto& [parameter, tensor] : assignments) parameter.assign(*tensor);
}

// ---- hooks

std::uint64_t ModuleBase::register_forward_pre_hook(ForwardPreHook hook) {
  state_->forward_pre_hooks.emplace_back(state_->next_hook, std::move(hook));
  return state_->next_hook++;
}
std::uint64_t ModuleBase::register_forward_hook(ForwardHook hook) {
  state_->forward_hooks.emplace_back(state_->next_hook, std::move(hook));
  return state_->next_hook++;
}
std::uint64_t ModuleBase::register_backward_hook(BackwardHook hook) {
  state_->backward_hooks.emplace_back(state_->next_hook, std::move(hook));
  return state_->next_hook++;
}
void ModuleBase::remove_hook(std::uint64_t id) {
  const auto is_it = [&](const auto& entry) { return entry.first == id; };
  std::erase_if(state_->forward_pre_hooks, is_it);
  std::erase_if(state_->forward_hooks, is_it);
  std::erase_if(state_->backward_hooks, is_it);
}

ModuleBase::Call::Call(const ModuleBase& module) {
  // The outermost module names its members, so that a parameter nobody lists is found out in backward.
  if (thread_context().module_depth == 0 && !module.state_->listed.exchange(true)) module.named_parameters();
  ++thread_context().module_depth;
}

void ModuleBase::run_pre_hooks(std::span<const Tensor> inputs) const {
  for (const auto& [id, hook] : state_->forward_pre_hooks) hook(*this, inputs);
}

namespace {
// Passes the gradients of a module's results through and shows them to the hooks.
class BackwardHookNode final : public NodeOfMany {
 public:
  const char* name() const override { return "backward_hook"; }
  void backward(std::span<Tensor> output_gradients, std::span<Tensor> input_gradients) override {
    for (const auto& [id, hook] : state->backward_hooks) hook(*module, output_gradients);
    for (std::size_t i = 0; i < output_gradients.size(); ++i) input_gradients[i] = output_gradients[i];
  }
  std::shared_ptr<ModuleState> state;
  const ModuleBase* module = nullptr;  // must outlive the graph, as its parameters' names do
};
}  // namespace

void ModuleBase::run_hooks(std::span<const Tensor> inputs, std::span<Tensor*> outputs) const {
  if (!state_->forward_hooks.empty()) {
    std::vector<Tensor> results;
    for (Tensor* output : outputs) results.push_back(*output);
    for (const auto& [id, hook] : state_->forward_hooks) hook(*this, inputs, results);
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
  std::unordered_map<const ParameterBody*, std::shared_ptr<ParameterBody>> copies;
  Walk walk;
  walk.parameter = [&](const std::string&, Parameter& member, bool is_buffer) {
    ParameterBody* old = member.body();
    std::shared_ptr<ParameterBody>& fresh = copies[old];
    if (!fresh) {
      fresh = old->home.defined() ? std::make_shared<ParameterBody>(old->home.detach().clone(), is_buffer,
                                                                    old->home.requires_grad())
                                  : std::make_shared<ParameterBody>(old->shape, old->dtype);
      fresh->name = old->name;
      fresh->listed = old->listed;
      fresh->sparse = old->sparse;
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
    fresh->next_hook = state->next_hook;
    fresh->forward_pre_hooks = state->forward_pre_hooks;
    fresh->forward_hooks = state->forward_hooks;
    fresh->backward_hooks = state->backward_hooks;
    state = fresh;
  };
  walk.start(copy);
}
}  // namespace detail

}  // namespace lockstep
