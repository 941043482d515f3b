#include "lockstep/parallel/sharding/sharded_core.h"

#include <algorithm>

#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/parallel/sharding/form_units.h"
#include "lockstep/parallel/sharding/sharded_unit.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/autograd/substitution.h"
#include "lockstep/tensor/engine/engine.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/surrounding_hooks.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep::detail {

// Where the wholes of a unit come from in a graph.
class UnitNode final : public NodeOfMany {
 public:
  UnitNode(std::weak_ptr<ShardedCore> core, std::size_t unit, bool reduces)
      : core_(std::move(core)), unit_(unit), reduces_(reduces) {}
  const char* name() const override { return "unshard"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor>) override {
    const auto core = core_.lock();
    if (!core) throw Error("[FullyShardedDataParallel] expected the wrapper to outlive its graphs, but it is gone");
    core->take_gradients(unit_, grad_outputs, reduces_);
  }

 private:
  const std::weak_ptr<ShardedCore> core_;
  const std::size_t unit_;
  const bool reduces_;
};

// ---- life

std::shared_ptr<ShardedCore> ShardedCore::make(ModuleBase& module, Communicator& communicator,
                                               FullyShardedOptions options) {
  std::shared_ptr<ShardedCore> core(new ShardedCore(module, communicator, std::move(options)));
  core->add_hooks();
  return core;
}

ShardedCore::ShardedCore(ModuleBase& module, Communicator& communicator, FullyShardedOptions options)
    : module_(module),
      communicator_(communicator),
      options_(std::move(options)),
      gather_stream_(communicator.device(), StreamPriority::high),
      reduce_stream_(communicator.device(), StreamPriority::high) {
  if (options_.timeout) communicator.set_timeout(*options_.timeout);
  units_ = form_units(module, communicator, options_, ignored_);
  members_ = std::make_unique<WrappedMembers>(
      module, WrappedMembers::Rules{.follow_buffers = options_.broadcast_buffers, .may_freeze = true});
}

ShardedCore::~ShardedCore() {
  for (ShardedUnit& unit : units_) unit.module->remove_hook(unit.hooks);
}

void ShardedCore::add_hooks() {
  for (std::size_t i = 0; i < units_.size(); ++i)  // around those of users, which see whole parameters
    units_[i].hooks = surround(
        *units_[i].module, [this, i](const ModuleBase&, std::span<const Tensor>) { enter(i); },
        [this, i](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor> outputs) { leave(i, outputs); });
}

// The other ranks are not left waiting for this one.
void ShardedCore::fail(const std::string& message) {
  communicator_.abort(message);
  throw Error(message);
}

void ShardedCore::check_idle(const char* call) const {
  if (in_forward_ || backward_ != 0)
    throw Error(cat("[", call, "] expected a FullyShardedDataParallel between iterations, got one whose ",
                    in_forward_ ? "forward is in progress" : "last backward is in progress or has failed"));
  if (summoned_) throw Error(cat("[", call, "] expected sharded parameters, but they are summoned"));
}

std::int32_t ShardedCore::number_of(const ShardedUnit& unit) const {
  return static_cast<std::int32_t>(&unit - units_.data());
}

std::vector<std::string> ShardedCore::unit_names() const {
  std::vector<std::string> names;
  for (const ShardedUnit& unit : units_) names.push_back(unit.name);
  return names;
}

Tensor ShardedCore::prepare_argument(const Tensor& argument) const {
  const Tensor there = argument.to(communicator_.device());
  const std::optional<DType> dtype = options_.mixed_precision.param_dtype;
  return dtype && there.defined() && is_floating(there.dtype()) ? there.to(*dtype) : there;
}

std::unique_ptr<MixedPrecisionScope> ShardedCore::buffer_scope() const {
  if (!options_.mixed_precision.buffer_dtype) return nullptr;
  return std::make_unique<MixedPrecisionScope>(std::span<const Parameter>(), members_->all_buffers(),
                                               options_.mixed_precision);
}

// ---- memory

// The host must not run ahead of the device: what is given back is in use until the device has come there.
void ShardedCore::keep_to_limit(std::deque<Event>& events) {
  while (static_cast<int>(events.size()) >= options_.units_in_flight) {
    LOCKSTEP_EDGE(wait(events.front(), Deadline::after(communicator_.timeout())));
    events.pop_front();
  }
}

void ShardedCore::gather(ShardedUnit& unit) {
  if (unit.gathered || unit.flats.empty()) return;
  keep_to_limit(given_back_);
  LOCKSTEP_EDGE_SCOPE(StreamScope, scope, gather_stream_);
  const trace::Scope span("gather");
  const CollectivesOfUnit of_unit(number_of(unit));
  for (ShardedFlat& flat : unit.flats) flat.gather(communicator_, unit.described());
  LOCKSTEP_EDGE(unit.arrived.record(gather_stream_));
  unit.gathered = true;
}

// The current stream may compute with it.
void ShardedCore::use(ShardedUnit& unit) {
  gather(unit);
  if (unit.flats.empty()) return;
  const Stream here = current_stream(communicator_.device());
  LOCKSTEP_EDGE(here.wait(unit.arrived));
  for (const ShardedFlat& flat : unit.flats) flat.use_on(here);
}

void ShardedCore::give_back(ShardedUnit& unit) {
  if (!unit.gathered) return;
  for (ShardedFlat& flat : unit.flats) flat.give_back();
  unit.gathered = false;
  const Stream here = current_stream(communicator_.device());
  if (here.synchronous()) return;
  LOCKSTEP_EDGE(given_back_.emplace_back().record(here));
}

// Of units without a node that says when.
void ShardedCore::give_back_frozen(const ShardedUnit& besides, std::uint64_t begun_after) {
  for (ShardedUnit& unit : units_)
    if (&unit != &besides && unit.gathered && !unit.trains() && unit.begin > begun_after) give_back(unit);
}

// The unit after this one in a forward's order, or before it in a backward's.
void ShardedCore::prefetch(std::size_t unit, const std::vector<std::size_t>& order, bool forward) {
  if (!options_.prefetch) return;
  if (forward) {
    const auto at = std::find(order.begin(), order.end(), unit);
    if (at != order.end() && at + 1 != order.end()) gather(units_[*(at + 1)]);
  } else {
    const auto at = std::find(order.rbegin(), order.rend(), unit);
    if (at != order.rend() && at + 1 != order.rend()) gather(units_[*(at + 1)]);
  }
}

// ---- forward

ShardedCore::Forward::Forward(ShardedCore& core, const ModuleBase& wrapper)
    : core_(core), substitution_(thread_context().substitution) {
  core.communicator_.check();
  if (core.backward_ != 0 || core.in_forward_ || core.summoned_)
    core.fail(core.summoned_ ? "[FullyShardedDataParallel] expected sharded parameters, but they are summoned"
                             : "[FullyShardedDataParallel] expected the last backward to have ended before the next "
                               "forward, but it failed or is in progress");
  const Stream here = current_stream(core.communicator_.device());
  for (ShardedUnit& unit : core.units_) core.give_back(unit);  // of a forward without a backward
  LOCKSTEP_EDGE(core.gather_stream_.wait_for(here));           // the optimizer's step
  const bool trains = GradMode::enabled();
  core.reduces_ = trains && *core.local_depth_ == 0;
  if (core.reduces_ && wrapper.is_training() && core.options_.broadcast_buffers) {
    core.members_->follow();
    std::vector<Tensor> buffers;
    for (const NamedParameter& buffer : core.members_->buffers()) buffers.push_back(buffer.parameter.tensor());
    if (!buffers.empty()) broadcast_coalesced(core.communicator_, buffers, 0);
  }
  core.in_forward_ = true;
  ++core.forward_;
  core.last_entered_ = std::exchange(core.entered_, {});
  core.left_.clear();
}

// Also when the module has thrown.
ShardedCore::Forward::~Forward() {
  thread_context().substitution = substitution_;
  core_.scopes_.clear();
  core_.in_forward_ = false;
  const bool keeps = GradMode::enabled();
  LOCKSTEP_EDGE(current_stream(core_.communicator_.device()).wait_for(core_.gather_stream_));  // as after a backward
  for (std::size_t i = 0; i < core_.units_.size(); ++i) {
    ShardedUnit& unit = core_.units_[i];
    unit.depth = 0;
    const bool used = std::find(core_.left_.begin(), core_.left_.end(), i) != core_.left_.end();
    if (!keeps || !used || (i > 0 && core_.options_.reshard_after_forward)) core_.give_back(unit);
  }
}

void ShardedCore::make_wholes(ShardedUnit& unit) {
  unit.forward = forward_;
  unit.wholes.clear();
  unit.begin = thread_context().sequence;
  Ref<UnitNode> node;
  std::vector<Edge> edges;
  for (const ShardedFlat& flat : unit.flats)
    for (const ShardedMember& member : flat.members()) {
      unit.wholes.push_back(
          Tensor::over(member.memory, flat.computed(), member.shape, format_strides(member.shape, member.format)));
      if (!GradMode::enabled() || !flat.trained()) continue;
      if (!node)
        node = Ref<UnitNode>(new UnitNode(weak_from_this(), static_cast<std::size_t>(number_of(unit)), reduces_));
      attach(*node, unit.wholes.back(), static_cast<std::uint32_t>(edges.size()));
      edges.push_back({member.parameter.body()->leaf, 0});
    }
  unit.recorded = static_cast<bool>(node);
  if (!node) return;
  node->output_count = static_cast<std::uint32_t>(edges.size());
  node->set_inputs(edges.size());
  std::move(edges.begin(), edges.end(), node->edges().begin());
}

void ShardedCore::enter(std::size_t index) {
  ShardedUnit& unit = units_[index];
  const bool again = !in_forward_ && backward_ != 0 && unit.forward != 0;  // a checkpoint computes it a second time
  if (!in_forward_ && !again)
    throw Error(
        cat("[FullyShardedDataParallel] expected ", unit.described(),
            " to be called by the forward of its wrapper, got a call outside of it: its parameters are sharded"));
  ++unit.depth;
  use(unit);
  if (!again) {
    const bool first = unit.forward != forward_;
    if (first || (GradMode::enabled() && unit.trains() && !unit.recorded)) make_wholes(unit);
    if (first) entered_.push_back(index);
    prefetch(index, last_entered_, true);
  }
  const Substitution* const outer = thread_context().substitution;
  auto scope = std::make_unique<Substitution>(outer);
  std::size_t at = 0;
  for (const ShardedFlat& flat : unit.flats)
    for (const ShardedMember& member : flat.members()) scope->add(member.parameter.body(), unit.wholes[at++]);
  thread_context().substitution = scope.get();
  scopes_.emplace_back(std::move(scope), outer);
}

void ShardedCore::leave(std::size_t index, std::span<const Tensor> outputs) {
  ShardedUnit& unit = units_[index];
  thread_context().substitution = scopes_.back().second;
  scopes_.pop_back();
  --unit.depth;
  if (!in_forward_) return;
  std::erase(left_, index);
  left_.push_back(index);
  if (GradMode::enabled())
    for (const Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
      const std::uint64_t sequence = output.edge().node->sequence;
      output.register_hook([weak = weak_from_this(), index, sequence](Tensor&) {
        if (const auto core = weak.lock()) core->before_backward(index, sequence);
      });
    }
  const bool stays = GradMode::enabled() && (index == 0 || !options_.reshard_after_forward);
  if (unit.depth == 0 && !stays) give_back(unit);
}

// ---- backward

void ShardedCore::begin_backward() {
  const std::uint64_t number = backward_number();
  if (backward_ == number) return;
  if (summoned_) fail("[FullyShardedDataParallel] expected sharded parameters in a backward, but they are summoned");
  if (backward_ != 0)
    fail(
        "[FullyShardedDataParallel] expected one backward at a time, got another one while one was in progress or "
        "after "
        "one that failed");
  backward_ = number;
  reduced_ = false;
  LOCKSTEP_EDGE(gather_stream_.wait_for(current_stream(communicator_.device())));  // a step since the forward
  queue_backward_callback([self = shared_from_this()] { self->finish_backward(); });
}

void ShardedCore::before_backward(std::size_t index, std::uint64_t sequence) {
  begin_backward();
  ShardedUnit& unit = units_[index];
  give_back_frozen(unit, sequence);
  use(unit);
  prefetch(index, left_, false);
}

void ShardedCore::take_gradients(std::size_t index, std::span<Tensor> gradients, bool reduces) {
  ShardedUnit& unit = units_[index];
  if (GradMode::enabled())
    throw NotSupported(
        cat("[FullyShardedDataParallel] expected gradients that need no graph, got a backward with "
            "create_graph through ",
            unit.described(), ": sharded gradients are not differentiable"));
  begin_backward();
  const NoGrad no_grad;
  give_back(unit);  // first, which makes room for what is reduced
  if (reduces) {
    reduce(unit, gradients);
  } else {
    std::size_t at = 0;
    for (ShardedFlat& flat : unit.flats) {
      if (!flat.trained()) continue;
      for (ShardedMember& member : flat.members()) member.keep(gradients[at++], flat.dtype());
    }
  }
  give_back_frozen(unit, unit.begin);
}

void ShardedCore::reduce(ShardedUnit& unit, std::span<Tensor> gradients) {
  reduced_ = true;
  std::size_t at = 0;
  for (ShardedFlat& flat : unit.flats) {
    if (!flat.trained()) continue;
    keep_to_limit(reductions_);
    const std::size_t count = flat.members().size();
    const Tensor packed = flat.pack(gradients.empty() ? gradients : gradients.subspan(at, count), communicator_.size());
    at += count;
    const Tensor sum = empty({flat.layout().shard}, {.dtype = packed.dtype(), .device = communicator_.device()});
    const Stream here = current_stream(communicator_.device());
    LOCKSTEP_EDGE(reduce_stream_.wait_for(here));
    LOCKSTEP_EDGE_SCOPE(StreamScope, scope, reduce_stream_);
    const trace::Scope span("reduce");
    const CollectivesOfUnit of_unit(number_of(unit));
    communicator_.reduce_scatter(packed, sum);
    sums_.push_back({&flat, sum});
    if (!reduce_stream_.synchronous()) LOCKSTEP_EDGE(reductions_.emplace_back().record(reduce_stream_));
  }
}

void ShardedCore::finish_backward() {
  const NoGrad no_grad;
  if (reduced_)  // what stayed of units that this backward did not go through
    for (ShardedUnit& unit : units_)
      if (std::any_of(unit.flats.begin(), unit.flats.end(), [](const auto& f) { return f.has_local_gradients(); }))
        reduce(unit, {});
  const Stream here = current_stream(communicator_.device());
  LOCKSTEP_EDGE(here.wait_for(reduce_stream_));
  LOCKSTEP_EDGE(here.wait_for(gather_stream_));  // what was gathered ahead and not used reads what a step will write
  for (const Reduction& reduction : sums_) reduction.flat->take_gradient(reduction.sum);
  sums_.clear();
  for (ShardedUnit& unit : units_) give_back(unit);
  backward_ = 0;
}

// ---- clipping

Tensor ShardedCore::clip_grad_norm(double max_norm, const ClipNormOptions& options) {
  check_clip(max_norm, options.norm_type);
  const NoGrad no_grad;
  const double type = options.norm_type;
  std::vector<Parameter> parts;
  DType dtype = DType::f32;  // the same on every rank
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats) {
      if (!flat.trained()) continue;
      dtype = promote_types(dtype, flat.dtype());
      for (const ShardedMember& member : flat.members()) parts.push_back(member.parameter);
    }
  std::vector<Parameter> mine = parts;
  if (communicator_.rank() == 0) mine.insert(mine.end(), ignored_.begin(), ignored_.end());
  const Device device = communicator_.device();
  Tensor norm = gradient_norm(mine, type);
  norm = norm.defined() ? norm.to(device).to(dtype).reshape({1}) : zeros({1}, {.dtype = dtype, .device = device});
  Tensor all = empty({communicator_.size()}, {.dtype = dtype, .device = device});
  communicator_.all_gather(norm.contiguous(), all);
  Tensor total = norm_of_norms(all, type);
  if (options.error_if_nonfinite) check_norm(total, parts.size() + ignored_.size());
  parts.insert(parts.end(), ignored_.begin(), ignored_.end());
  scale_to_norm(parts, total, max_norm);
  return total;
}

// ---- whole parameters

void ShardedCore::begin_summon() {
  check_idle("summon");
  const NoGrad no_grad;
  for (ShardedUnit& unit : units_)
    for (ShardedFlat& flat : unit.flats) {
      const Tensor whole = flat.gather_like(communicator_, flat.shard());
      flat.show(whole);
    }
  summoned_ = true;
}

void ShardedCore::end_summon(bool write_back) {
  const NoGrad no_grad;
  for (ShardedUnit& unit : units_)
    for (ShardedFlat& flat : unit.flats) flat.hide(write_back);
  summoned_ = false;
}

}  // namespace lockstep::detail
