#include "lockstep/parallel/ddp/reducer.h"

#include <algorithm>
#include <numeric>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {

// ---- life

std::shared_ptr<Reducer> Reducer::make(std::vector<NamedParameter> parameters, Communicator& communicator,
                                       const DistributedDataParallelOptions& options, BucketLimits limits,
                                       Announce announce) {
  std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(parameters), communicator, options, limits, std::move(announce)));
  for (std::size_t i = 0; i < reducer->variables_.size(); ++i) {
    Variable& variable = reducer->variables_[i];
    // The leaf may outlive the reducer, and keep the hook where the parameter was frozen meanwhile.
    variable.hook = variable.parameter.tensor().register_post_accumulate_hook([weak = std::weak_ptr(reducer), i] {
      if (const auto self = weak.lock()) self->on_gradient(i);
    });
  }
  return reducer;
}

Reducer::Reducer(std::vector<NamedParameter> parameters, Communicator& communicator,
                 const DistributedDataParallelOptions& options, BucketLimits limits, Announce announce)
    : communicator_(communicator),
      options_(options),
      announce_(std::move(announce)),
      stream_(communicator.device(), StreamPriority::high),
      limits_(limits) {
  for (NamedParameter& named : parameters) {
    const Parameter& parameter = named.parameter;
    Variable variable;
    const auto on_same = [&](const Stream& stream) { return stream.device() == parameter.device(); };
    const auto at = std::find_if(streams_.begin(), streams_.end(), on_same);
    const auto number = static_cast<int>(at - streams_.begin());
    if (at == streams_.end())
      streams_.push_back(on_same(stream_) ? stream_ : Stream(parameter.device(), StreamPriority::high));
    variable.entry = {static_cast<std::size_t>(element_count(parameter.shape())) * size_of(parameter.dtype()),
                      parameter.dtype(), parameter.body()->sparse, number};
    variable.name = std::move(named.name);
    variable.parameter = parameter;
    variables_.push_back(std::move(variable));
  }
  build_buckets(initial_order());
}

Reducer::~Reducer() {
  forget_shared_leaves();
  for (const Variable& variable : variables_)
    std::erase_if(leaf(variable).post_accumulate_hooks, [&](const auto& hook) { return hook.id == variable.hook; });
}

LeafNode& Reducer::leaf(const Variable& variable) { return static_cast<LeafNode&>(*variable.parameter.body()->leaf); }

std::vector<int> Reducer::initial_order() const {
  std::vector<int> order(variables_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

void Reducer::build_buckets(std::vector<int> order) {
  std::vector<BucketEntry> entries;
  for (const Variable& variable : variables_) entries.push_back(variable.entry);
  const std::size_t limits[] = {limits_.first, limits_.others};
  std::vector<Bucket> buckets;
  for (const std::vector<int>& members : assign_buckets(entries, order, limits)) {
    std::vector<Bucket::Slot> slots;
    for (const int index : members) {
      const Tensor parameter = variables_[static_cast<std::size_t>(index)].parameter.tensor();
      slots.push_back({index, parameter.shape(), 0, parameter.memory_format()});
    }
    const BucketEntry& first = entries[static_cast<std::size_t>(members.front())];
    const Bucket::Place gradients{first.dtype, streams_[static_cast<std::size_t>(first.device)].device()},
        reduced{options_.mixed_precision.reduces(first.dtype), communicator_.device()};
    buckets.emplace_back(std::move(slots), gradients, reduced, first.sparse);
  }
  // Gradients that lie in the old buckets move into the new ones.
  const NoGrad no_grad;
  std::vector<Tensor> moving(variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i)
    if (!buckets_.empty() && !variables_[i].entry.sparse && in_bucket(variables_[i]))
      moving[i] = leaf(variables_[i]).grad;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t s = 0; s < buckets[b].slots().size(); ++s) {
      const auto index = static_cast<std::size_t>(buckets[b].slots()[s].parameter);
      variables_[index].bucket = static_cast<int>(b);
      variables_[index].slot = s;
      if (!moving[index].defined()) continue;
      LOCKSTEP_EDGE(moving[index].storage()->record_use(current_stream(moving[index].device())));
      Tensor place = buckets[b].gradient(s);
      place.copy_(moving[index]);
      leaf(variables_[index]).grad = place;
    }
  }
  buckets_ = std::move(buckets);
  layout_ = std::move(order);
  settled_ = false;
  pending_ = std::vector<Pending>(buckets_.size());
  labels_.clear();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<NamedParameter> members;
    for (const Bucket::Slot& slot : buckets_[b].slots()) {
      const Variable& variable = variables_[static_cast<std::size_t>(slot.parameter)];
      members.push_back({variable.name, variable.parameter});
    }
    labels_.push_back({cat(kStepBucket, b), std::make_shared<const std::vector<NamedParameter>>(std::move(members))});
  }
}

void Reducer::rebuild_buckets() {
  // All ranks take the order of the first one that knows one (rank 0, unless it has had no inputs yet), or keep what
  // they have when not every parameter became ready there.
  std::string order;
  for (std::string& theirs :
       communicator_.all_gather_bytes(last_order_.size() == variables_.size() ? join_numbers(last_order_) : ""))
    if (order.empty()) order = std::move(theirs);
  rebuilt_ = true;
  std::vector<int> numbers = parse_numbers(order);
  if (numbers.size() != variables_.size()) return;
  build_buckets(std::move(numbers));
  layout_changed_ = true;
}

// ---- checkpoints

DdpBucketState Reducer::bucket_state() {
  const std::lock_guard lock(mutex_);
  DdpBucketState state{limits_.first, limits_.others};
  if (rebuilt_) {
    state.order = layout_;
  } else if (last_order_.size() == variables_.size()) {
    state.order = last_order_;  // what the next forward takes, if this is rank 0
  }
  return state;
}

std::string Reducer::bucket_state_problem(const DdpBucketState& state) {
  const std::lock_guard lock(mutex_);
  if (started_) return "expected no iteration in progress, got one whose gradients are being reduced";
  if (state.first_bucket_bytes == 0 || state.bucket_cap_bytes == 0)
    return cat("expected positive limits of buckets, got ", state.first_bucket_bytes, " and ", state.bucket_cap_bytes,
               " bytes");
  std::vector<int> sorted = state.order, all = initial_order();
  std::sort(sorted.begin(), sorted.end());
  std::reverse(all.begin(), all.end());
  if (sorted.empty() || sorted == all) return {};
  return cat("expected an order of the ", all.size(), " trained parameters, each once, got one of ", sorted.size(),
             " numbers from ", sorted.front(), " to ", sorted.back());
}

void Reducer::load_bucket_state(const DdpBucketState& state) {
  const std::lock_guard lock(mutex_);
  limits_ = {state.first_bucket_bytes, state.bucket_cap_bytes};
  rebuilt_ = layout_changed_ = !state.order.empty();
  build_buckets(rebuilt_ ? state.order : initial_order());
}

// ---- a backward

void Reducer::mark_ready(std::size_t index, bool unused) {
  Variable& variable = variables_[index];
  const NoGrad no_grad;
  variable.ready = true;
  variable.unused = unused;
  if (!unused) order_.push_back(static_cast<int>(index));
  store(variable);
  Pending& pending = pending_[static_cast<std::size_t>(variable.bucket)];
  const Bucket& bucket = buckets_[static_cast<std::size_t>(variable.bucket)];
  detail::StreamBody* writer = &current_stream(bucket.place().device).body();
  if (std::find(pending.writers.begin(), pending.writers.end(), writer) == pending.writers.end())
    pending.writers.push_back(writer);
  --pending.parts;
  launch_ready_buckets();
}

bool Reducer::in_bucket(const Variable& variable) const {
  const Tensor& grad = leaf(variable).grad;
  return grad.defined() && grad.storage().get() == part(variable).storage().get();
}

// What this rank's grad holds, divided by the number of ranks before anything is added (f16 could overflow otherwise);
// a hook divides by itself. Where this backward does not use the parameter that may be an average of before, in which
// the others have theirs.
void Reducer::store(Variable& variable) {
  if (alone() || variable.entry.sparse) return;  // prepare_rows takes the rows themselves
  LeafNode& leaf = Reducer::leaf(variable);
  const Tensor held = leaf.sparse.defined() ? leaf.sparse.to_dense() : leaf.grad;
  Tensor place = part(variable);
  buckets_[static_cast<std::size_t>(variable.bucket)].fill_gap(variable.slot, hooked());
  if (!held.defined()) {
    place.zero_();
  } else {
    if (held.dtype() != place.dtype() || held.device() != place.device())
      fail(cat("[DistributedDataParallel] expected the gradient of '", variable.name, "' to be as it was wrapped, ",
               place, ", got ", held, ": the module was moved between forward and backward"));
    if (variable.unused && in_bucket(variable)) variable.kept = place.clone();
    LOCKSTEP_EDGE(held.storage()->record_use(current_stream(held.device())));
    const Tensor gradient = held.detach();
    const double factor = hooked() ? 1.0 : 1.0 / divisor_;
    const bool in_place = gradient.storage().get() == place.storage().get() && gradient.strides() == place.strides();
    if (factor != 1.0 || !in_place) {
      launch(place.device(),
             UnaryArgs{.op = UnaryOp::mul_scalar, .in = gradient.in(), .out = place.out(), .a = factor});
      place.mark_changed();
    }
  }
  if (variable.unused) return;  // its grad stays what it is until it is known whether others have one
  leaf.sparse = {};
  leaf.grad = options_.gradient_as_bucket_view ? place : held;
}

void Reducer::launch_ready_buckets() {
  if (holds_buckets_ && !closing_) return;
  for (; next_bucket_ < buckets_.size() && pending_[next_bucket_].parts == 0; ++next_bucket_)
    launch_bucket(next_bucket_);
}

void Reducer::launch_bucket(std::size_t bucket) {
  announce_(labels_[bucket].step);
  reduce(bucket);
}

void Reducer::reduce(std::size_t number) {
  Bucket& bucket = buckets_[number];
  on_own_streams(local_stream(bucket), pending_[number].writers, [&] {
    if (bucket.sparse()) prepare_rows(number);
    if (!alone()) bucket.send();
    timeline_.begin_reduction(number, stream_);
    if (hooked()) {
      call_hook(number);
    } else if (bucket.sparse()) {
      pending_[number].rows.gather(communicator_);
    } else if (!alone()) {
      communicator_.all_reduce(bucket.flat());
    }
    if (pending_[number].work.late()) return;
    if (!alone()) bucket.receive();
    timeline_.end_reduction(number, stream_);
  });
}

// ---- the end of a backward

// Everything that is not ready yet becomes so, or is an error.
void Reducer::close_iteration() {
  if (options_.static_graph && !learns_graph()) {
    const auto fewer = [](const Variable& v) { return v.arrivals < v.expected; };
    if (std::any_of(variables_.begin(), variables_.end(), fewer))
      fail(cat("[DistributedDataParallel] expected a static graph, but it has changed: ", list(fewer),
               " got fewer gradients than in the first iteration"));
  }
  if (!may_skip()) {
    const auto absent = [&](const Variable& v) { return !counts(v); };
    if (std::any_of(variables_.begin(), variables_.end(), absent))
      fail(cat("[DistributedDataParallel] expected every parameter to get a gradient, but rank ", communicator_.rank(),
               " has none for ", list(absent),
               ". Let every output take part in the loss, or set find_unused_parameters (or static_graph, where it is "
               "the same ones in every iteration)"));
  }
  closing_ = true;
  launch_ready_buckets();
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = variables_[i];
    if (learns_graph()) variable.expected = variable.arrivals;
    if (!variable.ready) mark_ready(i, !counts(variable));
  }
  learned_ = true;
  if (!may_skip() || (options_.static_graph && reductions_ > 0)) return;
  announce_(kStepUsed);
  std::vector<std::int32_t> used;
  for (const Variable& variable : variables_) used.push_back(!variable.unused);
  sum_used_map(used);
}

void Reducer::sum_used_map(const std::vector<std::int32_t>& used) {
  used_map_ =
      from_data(used, {static_cast<std::int64_t>(used.size())}, {.dtype = DType::i32}).to(communicator_.device());
  detail::StreamBody* const writers[] = {&current_stream(communicator_.device()).body()};
  on_own_streams(stream_, writers, [&] { communicator_.all_reduce(used_map_); });
}

void Reducer::finalize() {
  const NoGrad no_grad;
  if (hook_is_late()) announce_(kStepLate), finish_hook();
  LOCKSTEP_EDGE(current_stream(communicator_.device()).wait_for(stream_));
  for (const Stream& local : streams_)
    if (!(local == stream_)) LOCKSTEP_EDGE(current_stream(local.device()).wait_for(local));
  finalize_unused();
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (buckets_[b].sparse()) hooked() ? take_rows(b) : join_rows(b);
  for (Variable& variable : variables_) {
    if (!options_.gradient_as_bucket_view && !alone() && !variable.unused && !variable.entry.sparse) {
      const Tensor average = part(variable);
      LOCKSTEP_EDGE(average.storage()->record_use(current_stream(average.device())));  // buckets are laid out anew
      leaf(variable).grad.copy_(average);
    }
    variable.kept = Tensor();
    variable.used = false;
  }
  started_ = false;
  last_order_ = order_;
  if (!current_capture) {  // else each replay is one
    ++reductions_;
    settled_ = true;
  }
  timeline_.end_backward();
}

// A parameter without a gradient here has the average of the others', or, where no rank has one, what it had before.
void Reducer::finalize_unused() {
  std::vector<bool> unused;
  for (const Variable& variable : variables_) unused.push_back(variable.unused);
  if (!last_unused_.empty() && unused != last_unused_) same_unused_ = false;
  last_unused_ = unused;
  if (std::none_of(unused.begin(), unused.end(), [](bool b) { return b; })) return;
  if (used_map_.defined()) {
    const auto ranks = used_map_.to_vector<std::int32_t>();
    for (std::size_t i = 0; i < variables_.size(); ++i) variables_[i].used_anywhere = ranks[i] > 0;
  }
  tell_lost();
  if (alone()) return;  // gradients are what they are
  const auto differs = [](const Variable& v) { return v.unused && v.used_anywhere && !v.parameter.requires_grad(); };
  if (std::any_of(variables_.begin(), variables_.end(), differs))
    fail(cat("[DistributedDataParallel] expected parameters to be frozen on every rank or on none, but ", list(differs),
             " is frozen on rank ", communicator_.rank(), " and trained on another"));
  for (Variable& variable : variables_) {
    if (!variable.unused || variable.entry.sparse) continue;
    Tensor place = part(variable);
    if (!variable.used_anywhere) {
      if (variable.kept.defined()) {
        LOCKSTEP_EDGE(variable.kept.storage()->record_use(current_stream(place.device())));
        place.copy_(variable.kept);
      }
      continue;
    }
    LeafNode& leaf = Reducer::leaf(variable);
    leaf.sparse = {};
    leaf.grad = options_.gradient_as_bucket_view ? place : place.clone();
  }
}

}  // namespace lockstep::detail
