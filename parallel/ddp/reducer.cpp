#include "lockstep/parallel/ddp/reducer.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/autograd/engine.h"
#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/nn/mirror.h"
#include "lockstep/tensor/ops_shape.h"
#include "lockstep/tensor/ops_support.h"

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
  for (const Variable& variable : variables_) variable.parameter.tensor().remove_hook(variable.hook);
}

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
    if (!buckets_.empty() && !variables_[i].entry.sparse &&
        in_bucket(variables_[i], variables_[i].parameter.tensor().leaf()->grad))
      moving[i] = variables_[i].parameter.grad();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t s = 0; s < buckets[b].slots().size(); ++s) {
      const auto index = static_cast<std::size_t>(buckets[b].slots()[s].parameter);
      variables_[index].bucket = static_cast<int>(b);
      variables_[index].slot = s;
      if (!moving[index].defined()) continue;
      Tensor place = buckets[b].gradient(s);
      place.copy_(moving[index]);
      variables_[index].parameter.set_grad(place);
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

// ---- forward

void Reducer::begin_forward(bool training) {
  const std::lock_guard lock(mutex_);
  communicator_.check();
  if (phase_ == Phase::expecting && started_) {
    fail(
        cat("[DistributedDataParallel] expected the reduction of the last iteration to be finished before the next "
            "forward, but ",
            next_bucket_, " of ", buckets_.size(), " buckets were reduced in ", backwards_, " of ",
            options_.backwards_per_forward,
            " backwards: the backward failed, or there were fewer than "
            "backwards_per_forward"));
  }
  if (training && reductions_ > 0 && !rebuilt_) rebuild_buckets();
  phase_ = Phase::local;  // until end_forward: a backward inside the forward stays here
  if (DdpTimeline::measures(reductions_ + 1)) {
    timeline_.begin_forward(buckets_.size());
  } else {
    timeline_.stop();
  }
}

void Reducer::end_forward(std::span<const Tensor> outputs) {
  const std::lock_guard lock(mutex_);
  timeline_.end_forward();
  phase_ = Phase::expecting;
  backwards_ = 0;
  in_backward_ = started_ = false;
  next_bucket_ = 0;
  order_.clear();
  used_map_ = Tensor();
  for (std::size_t b = 0; b < buckets_.size(); ++b) pending_[b] = {buckets_[b].slots().size(), {}, {}};
  for (Variable& variable : variables_) {
    variable.ready = variable.unused = false;
    variable.arrivals = 0;
  }
  if (options_.find_unused_parameters && !options_.static_graph && options_.backwards_per_forward == 1)
    find_unused(outputs);
}

void Reducer::stay_local() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::local;
  timeline_.stop();
}

// Parameters that the outputs do not depend on are ready now; without that, at the end of the backward.
void Reducer::find_unused(std::span<const Tensor> outputs) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> stack;
  const auto visit = [&](const Edge& edge) {
    if (edge.node.get() != nullptr && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
  };
  for (const Tensor& output : outputs) visit(output.edge());
  if (stack.empty()) return;  // nothing to run backward from
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (const Edge& edge : std::as_const(*node).edges()) visit(edge);
  }
  std::vector<std::size_t> absent;
  for (std::size_t i = 0; i < variables_.size(); ++i)
    if (!seen.contains(variables_[i].parameter.tensor().leaf())) absent.push_back(i);
  if (absent.empty()) return;
  // They are given away by the first gradient that arrives, so that a forward without a backward reduces nothing.
  for (const std::size_t i : absent) variables_[i].unused = true;
}

// ---- backward

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  Variable& variable = variables_[index];
  variable.used = true;
  if (phase_ != Phase::expecting) return;
  if (!in_backward_) {
    in_backward_ = true;
    ++backwards_;
    timeline_.begin_backward();
    queue_backward_callback([self = shared_from_this()] { self->on_backward_end(); });
    if (!started_) {
      started_ = true;
      for (std::size_t i = 0; i < variables_.size(); ++i)
        if (variables_[i].unused) mark_ready(i, !variables_[i].used);
    }
  }
  ++variable.arrivals;
  if (learns_graph() || backwards_ < options_.backwards_per_forward) return;
  if (options_.static_graph) {
    if (variable.arrivals > variable.expected)
      fail(cat("[DistributedDataParallel] expected a static graph, but it has changed: parameter '", variable.name,
               "' (number ", index, ") ",
               variable.expected == 0 ? "was unused" : cat("got ", variable.expected, " gradients"),
               " in the first iteration and gets ", variable.arrivals, " now"));
    if (variable.arrivals < variable.expected) return;
  } else if (variable.ready) {
    fail(cat("[DistributedDataParallel] expected one gradient for each parameter in an iteration, but '", variable.name,
             "' (number ", index,
             ") is ready a second time: it is used outside the forward of the wrapper, or in "
             "several backwards (set backwards_per_forward, or static_graph where the graph never changes)"));
  }
  mark_ready(index, false);
}

void Reducer::mark_ready(std::size_t index, bool unused) {
  Variable& variable = variables_[index];
  const NoGrad no_grad;
  variable.ready = true;
  variable.unused = unused;
  if (unused) {
    store_zeros(variable);
  } else {
    order_.push_back(static_cast<int>(index));
    store(variable);
  }
  Pending& pending = pending_[static_cast<std::size_t>(variable.bucket)];
  Stream* writer = &current_stream(communicator_.device()).lasting();
  if (std::find(pending.writers.begin(), pending.writers.end(), writer) == pending.writers.end())
    pending.writers.push_back(writer);
  --pending.parts;
  launch_ready_buckets();
}

bool Reducer::in_bucket(const Variable& variable, const Tensor& grad) const {
  return grad.defined() && grad.storage().get() == part(variable).storage().get();
}

// The gradient, divided by the number of ranks before anything is added (f16 could overflow otherwise).
void Reducer::store(Variable& variable) {
  if (alone() || variable.entry.sparse) return;  // gather_counts takes the rows themselves
  LeafNode& leaf = *variable.parameter.tensor().leaf();
  if (leaf.sparse.defined()) leaf.grad = std::exchange(leaf.sparse, {}).to_dense();
  const Tensor place = part(variable);
  const double share = 1.0 / communicator_.size();
  const Tensor gradient = leaf.grad.detach();
  launch(place.device(), &KernelTable::unary,
         UnaryArgs{.op = UnaryOp::mul_scalar, .in = gradient.in(), .out = place.out(), .a = share});
  place.mark_changed();
  if (options_.gradient_as_bucket_view) leaf.grad = place;
}

void Reducer::store_zeros(Variable& variable) {
  if (alone() || variable.entry.sparse) return;
  Tensor place = part(variable);
  if (in_bucket(variable, variable.parameter.tensor().leaf()->grad)) variable.kept = place.clone();
  place.zero_();
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && pending_[next_bucket_].parts == 0; ++next_bucket_) reduce(next_bucket_);
}

// Calls `communicate` with the reducer's stream current, after what is on `writers`.
template <class F>
void Reducer::on_own_stream(std::span<Stream* const> writers, F&& communicate) {
  for (Stream* writer : writers) LOCKSTEP_EDGE(stream_.wait_for(*writer));
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

void Reducer::on_backward_end() {
  const std::lock_guard lock(mutex_);
  in_backward_ = false;
  if (phase_ != Phase::expecting || backwards_ < options_.backwards_per_forward) return;
  close_iteration();
  finalize();
}

// Everything that is not ready yet becomes so, or is an error.
void Reducer::close_iteration() {
  if (options_.static_graph && !learns_graph()) {
    const auto fewer = [](const Variable& v) { return v.arrivals < v.expected; };
    if (std::any_of(variables_.begin(), variables_.end(), fewer))
      fail(cat("[DistributedDataParallel] expected a static graph, but it has changed: ", list(fewer),
               " got fewer gradients than in the first iteration"));
  }
  if (!may_skip()) {
    const auto absent = [](const Variable& v) { return !v.used; };
    if (std::any_of(variables_.begin(), variables_.end(), absent))
      fail(cat("[DistributedDataParallel] expected every parameter to get a gradient, but rank ", communicator_.rank(),
               " has none for ", list(absent),
               ". Let every output take part in the loss, or set find_unused_parameters (or static_graph, where it is "
               "the same ones in every iteration)"));
  }
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = variables_[i];
    if (learns_graph()) variable.expected = variable.arrivals;
    if (!variable.ready) mark_ready(i, !variable.used);
  }
  if (may_skip() && (!options_.static_graph || learns_graph())) launch_used_map();
}

void Reducer::launch_used_map() {
  std::vector<std::int32_t> used;
  for (const Variable& variable : variables_) used.push_back(variable.used);
  used_map_ =
      from_data(used, {static_cast<std::int64_t>(used.size())}, {.dtype = DType::i32}).to(communicator_.device());
  Stream* const writers[] = {&current_stream(communicator_.device())};
  on_own_stream(writers, [&] { communicator_.all_reduce(used_map_); });
}

void Reducer::finalize() {
  const NoGrad no_grad;
  LOCKSTEP_EDGE(current_stream(communicator_.device()).wait_for(stream_));
  finalize_unused();
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (buckets_[b].sparse()) join_gathered(b);
  for (Variable& variable : variables_) {
    if (!options_.gradient_as_bucket_view && !alone() && !variable.unused && !variable.entry.sparse) {
      Tensor grad = variable.parameter.grad();
      grad.copy_(part(variable));
    }
    variable.kept = Tensor();
    variable.used = false;
  }
  phase_ = Phase::local;
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
  for (Variable& variable : variables_) {
    if (!variable.unused || variable.entry.sparse) continue;
    Tensor place = part(variable);
    if (!variable.used_anywhere) {
      if (variable.kept.defined()) place.copy_(variable.kept);
    } else if (options_.gradient_as_bucket_view) {
      variable.parameter.set_grad(place);
    } else {
      variable.parameter.set_grad(place.clone());
    }
  }
}

}  // namespace lockstep::detail
