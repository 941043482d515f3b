#include "lockstep/tensor/nn/module.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/tensor/nn/adopt.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/module_internals.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/nn/surrounding_hooks.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

namespace {

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
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter&, bool) { names.add(visitor.full_name(name)); };
  visitor.visit(module);
  checked.store(true, std::memory_order_relaxed);
}

std::vector<NamedParameter> collect(const ModuleBase& module, bool buffers) {
  check_names(module);
  std::vector<NamedParameter> found;
  std::unordered_set<const ParameterBody*> seen;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& member, bool is_buffer) {
    ParameterBody* body = member.body();
    if (!body->listed) {
      body->listed = true;
      body->name = visitor.full_name(name);
    }
    if (is_buffer == buffers && seen.insert(body).second) found.push_back({visitor.full_name(name), member});
  };
  visitor.visit(module);
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

  Move(ParameterBody& of, Device device, DType dtype, MemoryFormat format) : body(&of) {
    const auto moved = [&](const Tensor& part) { return part.defined() ? part.to(device).to(dtype) : Tensor(); };
    value = moved(body->home.defined() ? body->home.detach().to(format) : Tensor());
    if (!body->leaf) return;
    const auto& leaf = static_cast<const LeafNode&>(*body->leaf);
    if (leaf.grad.defined()) grad = moved(detail::in_format(leaf.grad, format));
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
  // What goes is still read by the conversions.
  const auto keep = [](const Tensor& old) {
    if (old.defined()) LOCKSTEP_EDGE(old.storage()->record_use(current_stream(old.device())));
  };
  if (const auto* gate = body.gate(); gate && body.home.defined())  // and by calls on other streams
    LOCKSTEP_EDGE((*gate)->write_on(current_stream(body.home.device())));
  keep(body.home);
  if (body.slabs) detail::leave_slabs(body);
  body.drop_slots();
  move.value.storage()->set_version(body.home.version() + 1);  // what was saved of a frozen one is void
  body.home.set_data(move.value);
  body.dtype = move.value.dtype();
  if (body.leaf) {
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    for (const Tensor* old : {&leaf.grad, &leaf.sparse.values, &leaf.sparse.indices}) keep(*old);
    leaf.move_to(move.value.device(), move.value.dtype());
    leaf.format = move.value.memory_format();
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
  MemberVisitor visitor;
  visitor.module = [&](ModuleBase& module) { ModuleInternals::state(module)->training = training; };
  visitor.visit(*this);
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
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (!body->home.defined())
      uninitialised.push_back(body);
    else if (body->home.device() != device)
      moves.emplace_back(*body, device, body->dtype, body->home.memory_format());
  };
  visitor.visit(*this);
  for (ParameterBody* body : uninitialised) body->placed = device;
  for (const Move& move : moves)
    if (move.body->home.device() != device) rehome(move);  // else met under another name
}

void ModuleBase::to(DType dtype) {
  LOCKSTEP_CHECK(is_floating(dtype), "[to] expected a floating dtype for a module, got ", dtype);
  NoGrad no_grad;
  std::vector<Move> moves;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (is_floating(body->dtype) && body->dtype != dtype && !body->keeps_dtype)
      moves.emplace_back(*body, body->home.defined() ? body->home.device() : Device::cpu(), dtype,
                         body->home.defined() ? body->home.memory_format() : MemoryFormat::contiguous);
  };
  visitor.visit(*this);
  for (const Move& move : moves) {
    if (move.body->dtype == dtype) continue;  // met under another name
    if (move.value.defined())
      rehome(move);
    else
      move.body->dtype = dtype;
  }
}

void ModuleBase::to(MemoryFormat format) {
  NoGrad no_grad;
  std::vector<Move> moves;
  std::vector<ParameterBody*> uninitialised;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool) {
    ParameterBody* body = member.body();
    if (body->shape.rank() != 4) return;
    if (!body->home.defined())
      uninitialised.push_back(body);
    else if (body->home.memory_format() != format)
      moves.emplace_back(*body, body->home.device(), body->dtype, format);
  };
  visitor.visit(*this);
  for (ParameterBody* body : uninitialised) body->format = format;
  for (const Move& move : moves)
    if (move.body->home.memory_format() != format) rehome(move);  // else met under another name
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
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view short_name, Parameter& member, bool) {
    const std::string name = visitor.full_name(short_name);
    names.add(name);
    state.push_back({name, member.tensor()});
  };
  visitor.visit(*this);
  return state;
}

void ModuleBase::load_state_dict(const std::vector<NamedTensor>& state, bool strict) {
  std::unordered_map<std::string, const Tensor*> given;
  for (const NamedTensor& entry : state) given[entry.name] = &entry.tensor;
  std::vector<std::pair<Parameter, Tensor>> assignments;
  std::string missing, differing;
  DistinctNames names;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view short_name, Parameter& member, bool) {
    const std::string name = visitor.full_name(short_name);
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
  visitor.visit(*this);
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

// ---- elements that are somebody else's

void detail::adopt_all(std::vector<std::pair<Parameter, Tensor>>&& given) {
  const NoGrad no_grad;
  std::vector<Move> moves;
  for (auto& [parameter, value] : given) {
    ParameterBody& body = *parameter.body();
    const bool first = !body.home.defined();
    const Device device = first ? body.placed.value_or(value.device()) : body.home.device();
    const MemoryFormat format = first ? body.format.value_or(MemoryFormat::contiguous) : body.home.memory_format();
    Move& move = moves.emplace_back(body, device, body.dtype, first ? MemoryFormat::contiguous : format);
    move.value = value.detach().to(device).to(body.dtype).contiguous(format);
    value = {};
  }
  for (const Move& move : moves) {
    ParameterBody& body = *move.body;
    if (body.home.defined()) {
      rehome(move);
      continue;
    }
    body.home = move.value;
    if (!is_floating(body.dtype)) continue;
    body.home.set_requires_grad(true);
    body.set_leaf(body.home.edge().node);
  }
}

// ---- deep copies

namespace detail {
void separate(ModuleBase& copy) {
  NoGrad no_grad;
  const auto gate = std::make_shared<ReadGate>();
  std::unordered_map<const ParameterBody*, std::shared_ptr<ParameterBody>> copies;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool is_buffer) {
    ParameterBody* old = member.body();
    std::shared_ptr<ParameterBody>& fresh = copies[old];
    if (!fresh) {
      fresh = old->home.defined()
                  ? std::make_shared<ParameterBody>(old->home.detach().clone(), is_buffer, old->home.requires_grad())
                  : std::make_shared<ParameterBody>(old->shape, old->dtype);
      fresh->name = old->name;
      fresh->listed = old->listed;
      fresh->placed = old->placed;
      fresh->format = old->format;
      fresh->sparse = old->sparse;
      fresh->shard = old->shard;
      fresh->keeps_dtype = old->keeps_dtype;
      fresh->set_gate(gate);
    }
    MemberVisitor::replace(member, fresh);
  };
  std::unordered_map<const ModuleState*, std::shared_ptr<ModuleState>> states;
  visitor.module = [&](ModuleBase& module) {
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
    const auto without = [](const auto& list) {  // those of a wrapper of the original
      auto entries = *list.entries();
      std::erase_if(entries, [](const auto& entry) { return surrounds(entry.first); });
      return std::make_shared<const decltype(entries)>(std::move(entries));
    };
    fresh->forward_pre_hooks.set(without(state->forward_pre_hooks));
    fresh->forward_hooks.set(without(state->forward_hooks));
    fresh->backward_hooks.set(state->backward_hooks.entries());
    fresh->has_hooks =
        !fresh->forward_pre_hooks.empty() || !fresh->forward_hooks.empty() || !fresh->backward_hooks.empty();
    state = fresh;
  };
  visitor.visit(copy);
}
}  // namespace detail

}  // namespace lockstep
