// Which backwards the reducer reduces, and when an iteration begins and ends.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <unordered_map>

#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/engine/engine.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {

// ---- forward

void Reducer::begin_forward(bool reduces, bool training, bool holds_buckets) {
  const std::lock_guard lock(mutex_);
  if (reduces) holds_buckets_ = holds_buckets;
  communicator_.check();
  if (reduces) check_capture(training);
  if (started_ && (reduces || !open_.empty())) {
    fail(
        cat("[DistributedDataParallel] expected the reduction of the last iteration to be finished before the next "
            "forward, but ",
            next_bucket_, " of ", buckets_.size(), " buckets were reduced in ", backwards_, " of ",
            options_.backwards_per_forward,
            " backwards: the backward failed, or there were fewer than "
            "backwards_per_forward"));
  }
  if (reduces && training && reductions_ > 0 && !rebuilt_) {
    announce_(kStepOrder);
    rebuild_buckets();
  }
  if (reduces && !current_capture && DdpTimeline::measures(reductions_ + 1)) {
    timeline_.begin_forward(buckets_.size());
  } else {
    timeline_.stop();
  }
  // Numbers of nodes are a thread's own, so each thread that comes here gets a number too.
  static std::atomic<std::uint32_t> last_numbering = 0;
  ThreadContext& context = thread_context();
  if (context.numbering == 0) context.numbering = ++last_numbering;
  forward_first_ = context.sequence + 1;
}

void Reducer::end_forward(bool reduces, std::span<const Tensor> results) {
  // Of older ones two of a thread count as one, with what lies between them: no limit to how long a graph may live, and
  // at worst a backward too many that is reduced.
  constexpr std::size_t kToldApart = 4096;
  const std::lock_guard lock(mutex_);
  timeline_.end_forward();
  for (const Tensor& result : results) {
    const LeafNode* const node = result.defined() ? result.leaf() : nullptr;
    if (!node) continue;
    for (Variable& variable : variables_)
      if (node == &leaf(variable)) variable.is_result = reduces;
  }
  if (!reduces) return;
  const ThreadContext& context = thread_context();
  forwards_.emplace(Forward{context.numbering, context.sequence}, forward_first_);
  if (forwards_.size() <= kToldApart) return;
  const auto older = std::adjacent_find(forwards_.begin(), forwards_.end(), [](const auto& a, const auto& b) {
    return a.first.numbering == b.first.numbering;
  });
  if (older == forwards_.end()) return;
  std::next(older)->second = older->second;
  forwards_.erase(older);
}

// ---- backward

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  Variable& variable = variables_[index];
  variable.used = true;
  const bool reduces = reduces_backward();
  if (started_ && variable.ready)
    fail(cat(
        "[DistributedDataParallel] expected one gradient for each parameter in an iteration, but '", variable.name,
        "' (number ", index,
        ") is ready a second time: its gradient was computed by another backward while this one was in progress, or "
        "in several backwards after one failed"));
  if (options_.static_graph && reductions_ > 0 && !variable.used_anywhere)
    fail(cat("[DistributedDataParallel] expected a static graph, but it has changed: parameter '", variable.name,
             "' (number ", index, ") was unused in the first iteration and gets a gradient now"));
  if (!reduces) return;
  check_only_reducer(variable);
  if (!unreached_.empty()) give_away_unreached(variable.entry.device);
  ++variable.arrivals;
  if (learns_graph() || backwards_ < options_.backwards_per_forward) return;
  if (options_.static_graph) {
    if (variable.arrivals > variable.expected)
      fail(cat("[DistributedDataParallel] expected a static graph, but it has changed: parameter '", variable.name,
               "' (number ", index, ") ",
               variable.expected == 0 ? "was unused" : cat("got ", variable.expected, " gradients"),
               " in the first iteration and gets ", variable.arrivals, " now"));
    if (variable.arrivals < variable.expected) return;
  }
  mark_ready(index, false);
}

namespace {
// The leaves that several hooks wait for, by the reducer that was the last to reduce them, and in which backward.
struct LastReduced {
  const Reducer* by;
  std::uint64_t backward;
};
struct ReducedLeaves {
  std::mutex mutex;
  std::unordered_map<const LeafNode*, LastReduced> all;
};
ReducedLeaves& reduced_leaves() {
  static auto& leaves = *new ReducedLeaves;  // never destroyed: a reducer may outlive main
  return leaves;
}
}  // namespace

// Each of two would average what the other one is averaging just then.
void Reducer::check_only_reducer(const Variable& variable) {
  const LeafNode& node = leaf(variable);
  if (node.post_accumulate_hooks.size() < 2) [[likely]]
    return;
  const LastReduced now{this, backward_number()};
  LastReduced last = now;
  {
    const std::lock_guard lock(reduced_leaves().mutex);
    std::swap(last, reduced_leaves().all.try_emplace(&node, now).first->second);
  }
  shares_leaves_ = true;
  if (last.backward == now.backward && last.by != this)
    fail(cat("[DistributedDataParallel] expected the gradient of '", variable.name,
             "' to be reduced by one wrapper in a backward, got a loss of two wrappers of one module"));
}

void Reducer::forget_shared_leaves() {
  if (!shares_leaves_) return;
  const std::lock_guard lock(reduced_leaves().mutex);
  std::erase_if(reduced_leaves().all, [&](const auto& entry) { return entry.second.by == this; });
}

// Of the backward in progress; looked for once in each.
bool Reducer::reduces_backward() {
  const std::uint64_t number = backward_number();
  if (number == last_local_) return false;
  if (std::find(open_.begin(), open_.end(), number) != open_.end()) return true;
  if (!goes_through_forward()) {
    last_local_ = number;
    return false;
  }
  begin_backward(number);
  return true;
}

bool Reducer::goes_through_forward() const {
  std::vector<const Node*> results;
  for (const Variable& variable : variables_)
    if (variable.is_result) results.push_back(&leaf(variable));
  bool found = false;
  visit_backward([&](const Node& node) {
    if (node.kind() == Node::Kind::leaf) {
      found = std::find(results.begin(), results.end(), &node) != results.end();
    } else {
      // The first one of the node's thread that ends at the node or after it.
      const auto at = forwards_.lower_bound({node.numbering, node.sequence});
      found = at != forwards_.end() && at->first.numbering == node.numbering && at->second <= node.sequence;
    }
    return !found;
  });
  return found;
}

void Reducer::begin_backward(std::uint64_t number) {
  const bool first = !started_;
  if (first) {
    last_local_ = number;  // when it throws: the rest of this backward
    check_capture(false);
    const JoinTurn turn = announce_(kStepBegin);
    divisor_ = turn.divisor;
    divisor_may_fall_ = turn.by_active;
    last_local_ = 0;
    begin_iteration();
  }
  open_.push_back(number);
  queue_backward_callback([self = shared_from_this(), number] { self->on_backward_end(number); });
  ++backwards_;
  timeline_.begin_backward();
  if (first && options_.find_unused_parameters && !options_.static_graph && options_.backwards_per_forward == 1)
    find_unreached();
}

void Reducer::begin_iteration() {
  started_ = true;
  closing_ = false;
  backwards_ = 0;
  next_bucket_ = 0;
  order_.clear();
  unreached_.clear();
  used_map_ = Tensor();
  if (current_capture) [[unlikely]]
    join_capture();
  for (std::size_t b = 0; b < buckets_.size(); ++b) pending_[b] = {.parts = buckets_[b].slots().size()};
  for (Variable& variable : variables_) {
    variable.ready = variable.unused = false;
    variable.arrivals = 0;
  }
}

// Parameters that the graph does not reach are ready now; those that it reaches without a gradient, at its end.
void Reducer::find_unreached() {
  std::vector<const Node*> reached;
  visit_backward([&](const Node& node) {
    if (node.is_leaf()) reached.push_back(&node);
    if (node.kind() == Node::Kind::mirror && node.edges()[0].node) reached.push_back(node.edges()[0].node.get());
    return true;
  });
  std::sort(reached.begin(), reached.end());
  for (std::size_t i = 0; i < variables_.size(); ++i)
    if (!std::binary_search(reached.begin(), reached.end(), static_cast<const Node*>(&leaf(variables_[i]))))
      unreached_.push_back(i);
}

// Those of the device whose gradient has come: in this thread another one's current stream is not that of the rank.
void Reducer::give_away_unreached(int device) {
  const auto rest = std::stable_partition(unreached_.begin(), unreached_.end(),
                                          [&](std::size_t i) { return variables_[i].entry.device != device; });
  const std::vector<std::size_t> now(rest, unreached_.end());
  unreached_.erase(rest, unreached_.end());
  for (const std::size_t i : now) mark_ready(i, !counts(variables_[i]));
}

// Whether a gradient has come since the last reduction, and is still there.
bool Reducer::counts(const Variable& variable) const {
  const LeafNode& leaf = Reducer::leaf(variable);
  return variable.used && (leaf.grad.defined() || leaf.sparse.defined());
}

void Reducer::on_backward_end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase(open_, number);
  if (!started_ || !open_.empty() || backwards_ < options_.backwards_per_forward) return;
  close_iteration();
  finalize();
}

}  // namespace lockstep::detail
