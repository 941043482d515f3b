#include "lockstep/parallel/ddp/reducer.h"

#include <algorithm>
#include <numeric>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {

namespace {

std::string join_numbers(std::span<const int> numbers) {
  std::string text;
  for (const int number : numbers) text += cat(text.empty() ? "" : " ", number);
  return text;
}

std::vector<int> parse_numbers(const std::string& text) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find(' ', at);
    if (end == std::string::npos) end = text.size();
    numbers.push_back(std::stoi(text.substr(at, end - at)));
    at = end + 1;
  }
  return numbers;
}

}  // namespace

// ---- life

std::shared_ptr<Reducer> Reducer::make(std::vector<NamedParameter> parameters, Communicator& communicator,
                                       const DistributedDataParallelOptions& options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(parameters), communicator, options));
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
                 const DistributedDataParallelOptions& options)
    : communicator_(communicator), options_(options), stream_(communicator.device()) {
  for (NamedParameter& named : parameters) {
    const Parameter& parameter = named.parameter;
    Variable variable;
    variable.entry = {static_cast<std::size_t>(element_count(parameter.shape())) * size_of(parameter.dtype()),
                      parameter.dtype(), parameter.body()->sparse};
    variable.name = std::move(named.name);
    variable.parameter = parameter;
    variables_.push_back(std::move(variable));
  }
  std::vector<int> order(variables_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  build_buckets(order);
}

Reducer::~Reducer() {
  for (const Variable& variable : variables_)
    std::erase_if(leaf(variable).post_accumulate_hooks, [&](const auto& hook) { return hook.id == variable.hook; });
}

LeafNode& Reducer::leaf(const Variable& variable) { return static_cast<LeafNode&>(*variable.parameter.body()->leaf); }

void Reducer::build_buckets(std::span<const int> order) {
  std::vector<BucketEntry> entries;
  for (const Variable& variable : variables_) entries.push_back(variable.entry);
  const std::size_t limits[] = {mebibytes(options_.first_bucket_mb), mebibytes(options_.bucket_cap_mb)};
  std::vector<Bucket> buckets;
  for (const std::vector<int>& members : assign_buckets(entries, order, limits)) {
    std::vector<Bucket::Slot> slots;
    for (const int index : members)
      slots.push_back({index, variables_[static_cast<std::size_t>(index)].parameter.shape(), 0});
    const BucketEntry& first = entries[static_cast<std::size_t>(members.front())];
    buckets.emplace_back(std::move(slots), first.dtype, communicator_.device(), first.sparse);
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
      Tensor place = buckets[b].gradient(s);
      place.copy_(moving[index]);
      leaf(variables_[index]).grad = place;
    }
  }
  buckets_ = std::move(buckets);
  pending_.assign(buckets_.size(), {});
}

void Reducer::rebuild_buckets() {
  // All ranks take rank 0's order, or keep what they have when not every parameter became ready there.
  const std::string order =
      communicator_.broadcast_bytes(last_order_.size() == variables_.size() ? join_numbers(last_order_) : "", 0);
  rebuilt_ = true;
  const std::vector<int> numbers = parse_numbers(order);
  if (numbers.size() != variables_.size()) return;
  build_buckets(numbers);
  layout_changed_ = true;
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
  detail::StreamBody* writer = &current_stream(communicator_.device()).body();
  if (std::find(pending.writers.begin(), pending.writers.end(), writer) == pending.writers.end())
    pending.writers.push_back(writer);
  --pending.parts;
  launch_ready_buckets();
}

bool Reducer::in_bucket(const Variable& variable) const {
  const Tensor& grad = leaf(variable).grad;
  return grad.defined() && grad.storage().get() == part(variable).storage().get();
}

// What this rank's grad holds, divided by the number of ranks before anything is added (f16 could overflow otherwise).
// Where this backward does not use the parameter that may be an average of before, in which the others have theirs.
void Reducer::store(Variable& variable) {
  if (alone() || variable.entry.sparse) return;  // gather_counts takes the rows themselves
  LeafNode& leaf = Reducer::leaf(variable);
  const Tensor held = leaf.sparse.defined() ? leaf.sparse.to_dense() : leaf.grad;
  Tensor place = part(variable);
  if (!held.defined()) {
    place.zero_();
  } else {
    if (held.dtype() != place.dtype() || held.device() != place.device())
      fail(cat("[DistributedDataParallel] expected the gradient of '", variable.name, "' to be as it was wrapped, ",
               place, ", got ", held, ": the module was moved between forward and backward"));
    if (variable.unused && in_bucket(variable)) variable.kept = place.clone();
    const Tensor gradient = held.detach();
    launch(
        place.device(),
        UnaryArgs{.op = UnaryOp::mul_scalar, .in = gradient.in(), .out = place.out(), .a = 1.0 / communicator_.size()});
    place.mark_changed();
  }
  if (variable.unused) return;  // its grad stays what it is until it is known whether others have one
  leaf.sparse = {};
  leaf.grad = options_.gradient_as_bucket_view ? place : held;
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && pending_[next_bucket_].parts == 0; ++next_bucket_) reduce(next_bucket_);
}

// Calls `communicate` with the reducer's stream current, after what is on `writers`.
template <class F>
void Reducer::on_own_stream(std::span<detail::StreamBody* const> writers, F&& communicate) {
  for (detail::StreamBody* writer : writers) LOCKSTEP_EDGE(stream_.wait_for(*writer));
  LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream_);
  communicate();
}

void Reducer::reduce(std::size_t bucket) {
  const bool sparse = buckets_[bucket].sparse();
  if (sparse && !alone()) gather_counts(bucket);
  on_own_stream(pending_[bucket].writers, [&] {
    timeline_.begin_reduction(bucket, stream_);
    const GatheredRows& rows = pending_[bucket].rows;
    if (rows.values.defined()) {
      communicator_.all_gather(rows.my_indices, rows.indices);
      communicator_.all_gather(rows.my_values, rows.values);
    } else if (!sparse && !alone()) {
      communicator_.all_reduce(buckets_[bucket].flat());
    }
    timeline_.end_reduction(bucket, stream_);
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
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = variables_[i];
    if (learns_graph()) variable.expected = variable.arrivals;
    if (!variable.ready) mark_ready(i, !counts(variable));
  }
  if (may_skip() && (!options_.static_graph || learns_graph())) launch_used_map();
}

void Reducer::launch_used_map() {
  std::vector<std::int32_t> used;
  for (const Variable& variable : variables_) used.push_back(!variable.unused);
  used_map_ =
      from_data(used, {static_cast<std::int64_t>(used.size())}, {.dtype = DType::i32}).to(communicator_.device());
  detail::StreamBody* const writers[] = {&current_stream(communicator_.device()).body()};
  on_own_stream(writers, [&] { communicator_.all_reduce(used_map_); });
}

void Reducer::finalize() {
  const NoGrad no_grad;
  LOCKSTEP_EDGE(current_stream(communicator_.device()).wait_for(stream_));
  finalize_unused();
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (buckets_[b].sparse()) join_gathered(b);
  for (Variable& variable : variables_) {
    if (!options_.gradient_as_bucket_view && !alone() && !variable.unused && !variable.entry.sparse)
      leaf(variable).grad.copy_(part(variable));
    variable.kept = Tensor();
    variable.used = false;
  }
  started_ = false;
  last_order_ = order_;
  ++reductions_;
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
  if (alone()) return;  // gradients are what they are
  const auto differs = [](const Variable& v) { return v.unused && v.used_anywhere && !v.parameter.requires_grad(); };
  if (std::any_of(variables_.begin(), variables_.end(), differs))
    fail(cat("[DistributedDataParallel] expected parameters to be frozen on every rank or on none, but ", list(differs),
             " is frozen on rank ", communicator_.rank(), " and trained on another"));
  for (Variable& variable : variables_) {
    if (!variable.unused || variable.entry.sparse) continue;
    Tensor place = part(variable);
    if (!variable.used_anywhere) {
      if (variable.kept.defined()) place.copy_(variable.kept);
      continue;
    }
    LeafNode& leaf = Reducer::leaf(variable);
    leaf.sparse = {};
    leaf.grad = options_.gradient_as_bucket_view ? place : place.clone();
  }
}

}  // namespace lockstep::detail
