#include "lockstep/tensor/autograd/graph_task.h"

#include <algorithm>
#include <thread>

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_shape.h"

namespace lockstep::detail {

namespace {
constexpr std::uint64_t kRunsFirst = ~std::uint64_t{0};  // leaves free their gradients as soon as they are complete

// `gradient`, made on this thread's current stream, is for a node on `receiver`.
void hand_over_gradient(const Tensor& gradient, Stream& receiver) {
  Stream& made_on = current_stream(gradient.device());
  if (&made_on == &receiver) return;
  LOCKSTEP_EDGE(receiver.wait_for(made_on));
  LOCKSTEP_EDGE(gradient.storage()->record_use(receiver));
}
}  // namespace

GraphTask*& GraphTask::current() {
  static thread_local GraphTask* task = nullptr;
  return task;
}

GraphTask::GraphTask(std::vector<Root> roots, std::vector<Edge> captures, Mode mode)
    : roots_(std::move(roots)), captures_(std::move(captures)), mode_(mode), context_(thread_context()) {
  captured.resize(captures_.size());
  capture_reached.resize(captures_.size());
  context_.grad_enabled = mode_.create_graph;
  context_.autocast = false;  // gradients have the dtypes of the forward
  context_.autocast_cache = nullptr;
  if (context_.training_call == 0) context_.training_call = next_training_call();
  traverse();
  mark_needed();
  assign_lanes();
}

void GraphTask::Claims::release() {
  for (ParameterBody* body : bodies) body->unclaim();
  bodies.clear();
}

// ---- running it

void GraphTask::run() {
  remaining_ = states_.size();
  {
    ContextScope context(context_);
    for (std::uint32_t r = 0; r < roots_.size(); ++r) {
      const std::uint32_t index = index_of(roots_[r].edge.node.get());
      State& state = states_[index];
      LOCKSTEP_EDGE(hand_over_gradient(roots_[r].gradient, *state.node->stream));
      Lane& lane = *lanes_[state.lane];
      std::lock_guard lock(lane.mutex);
      if (lanes_.size() > 1)
        state.contributions.push_back({roots_[r].edge.index, kRunsFirst - r, 0, 0, roots_[r].gradient});
      else
        add(state, roots_[r].edge.index, roots_[r].gradient);
      if (--state.pending == 0) make_ready(index);
    }
    for (std::size_t i = 1; i < lanes_.size(); ++i) {
      Lane& lane = *lanes_[i];
      std::lock_guard lock(lane.mutex);
      if (!lane.ready.empty() && !lane.active) {
        lane.active = true;
        lane.thread->post([task = shared_from_this(), &lane] { task->run_lane(lane); });
      }
    }
    wait_for_lanes();
    // From here on nothing runs any more; the lanes may hold on to this object for a moment longer.
    struct Release {
      Claims& claims;
      ~Release() { claims.release(); }
    } release{claims_};
    // Taken out of the task, which a lane may be the last to let go of.
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    join_streams();
    if (!replicated_.empty()) reduce_replica_gradients(std::move(replicated_));
    if (!kept_.empty()) context_.kept_gradients->keep(std::move(kept_));
    context_.sequence = thread_context().sequence;
  }
  thread_context().sequence = context_.sequence;
  GraphTask* outer = std::exchange(current(), this);
  try {
    for (std::size_t i = 0; i < callbacks.size(); ++i) {  // they may queue more
      const auto callback = callbacks[i];
      callback();
    }
  } catch (...) {
    current() = outer;
    throw;
  }
  current() = outer;
}

void GraphTask::wait_for_lanes() {
  GraphTask* outer = std::exchange(current(), this);
  Lane& here = *lanes_[0];
  Deadline deadline = Deadline::after(kDefaultTimeout);
  std::size_t left = remaining_.load(std::memory_order_acquire);
  bool in_time = true;
  while (in_time) {
    while (run_next(here)) {
    }
    if (remaining_.load(std::memory_order_acquire) == 0) break;
    // The others are at work: look again a few times, then sleep.
    std::unique_lock lock(here.mutex);
    const auto something = [&] { return !here.ready.empty() || remaining_.load(std::memory_order_acquire) == 0; };
    for (int spin = 0; spin < 20 && !something(); ++spin) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    in_time = here.changed.wait_until(lock, deadline.time(), something);
    // A graph may take long, as long as it gets on.
    if (const std::size_t now = remaining_.load(std::memory_order_acquire); now < left) {
      left = now;
      deadline = Deadline::after(kDefaultTimeout);
      in_time = true;
    }
  }
  current() = outer;
  if (!in_time) {
    failed_ = true;  // what still runs ends by itself; it keeps this task alive
    throw TimeoutError(cat("[backward] expected the graph to get on within 10 minutes, but ", left, " of ",
                           states_.size(), " nodes are still to run"));
  }
}

void GraphTask::run_lane(Lane& lane) {
  ContextScope context(context_);
  GraphTask* outer = std::exchange(current(), this);
  for (;;) {
    while (run_next(lane)) {
    }
    std::lock_guard lock(lane.mutex);
    if (lane.ready.empty()) {
      lane.active = false;
      break;
    }
  }
  current() = outer;
}

bool GraphTask::run_next(Lane& lane) {
  std::uint32_t index;
  {
    std::lock_guard lock(lane.mutex);
    if (lane.ready.empty()) return false;
    std::pop_heap(lane.ready.begin(), lane.ready.end());
    index = lane.ready.back().second;
    lane.ready.pop_back();
  }
  try {
    execute(index);
  } catch (...) {
    fail(std::current_exception());
    deliver_rest(states_[index], {});  // the nodes behind this one run out without executing
  }
  finish_node();
  return true;
}

void GraphTask::execute(std::uint32_t index) {
  State& state = states_[index];
  Node& node = *state.node;
  const std::size_t edge_count = node.edges().size();
  Tensor small[4];
  std::vector<Tensor> large(edge_count > 4 ? edge_count : 0);
  const std::span<Tensor> inputs = edge_count > 4 ? std::span<Tensor>(large) : std::span<Tensor>(small, edge_count);

  if (state.needed && !failed_.load(std::memory_order_relaxed)) {
    LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *node.stream);
    if (!state.contributions.empty()) gather_contributions(state);
    const std::span<Tensor> outputs =
        state.gradients.empty() ? std::span<Tensor>(&state.gradient, 1) : std::span<Tensor>(state.gradients);
    if (state.gets_rows) [[unlikely]] receive_rows(index, outputs[0]);
    const bool arrived = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& g) { return g.defined(); });
    if (arrived) {
      // The hooks of a replicated parameter wait for the sum over the replicas.
      if (node.hooks && !state.replicated) run_gradient_hooks(node, outputs);
      if (state.captured)
        for (std::size_t c = 0; c < captures_.size(); ++c)
          if (captures_[c].node.get() == &node) captured[c] = outputs[captures_[c].index];
      const bool mirror_ends = node.kind() == Node::Kind::mirror && mode_.accumulate && !mode_.create_graph;
      if (waits(state)) [[unlikely]] {
        keep(state, std::move(outputs[0]));
      } else if (ParameterBody* body = replicated_body(state)) {
        const Device device = node.stream->device();
        store_replica_gradient(*body, device, outputs[0]);
        std::lock_guard lock(mutex_);
        replicated_.push_back({body, device, {}});
      } else if (node.is_leaf() ? mode_.accumulate : state.runs && !mirror_ends) {
        if (node.gives_rows() && takes_rows(targets_[state.first_edge])) [[unlikely]] {
          send_rows(state, outputs[0]);
        } else {
          node.backward(outputs, inputs);
        }
        if (!mode_.retain_graph && !mode_.create_graph) node.release();
      }
    }
    for (Tensor& gradient : outputs) gradient = Tensor();
    deliver_rest(state, inputs);
    return;
  }
  deliver_rest(state, {});
}

ParameterBody* GraphTask::replicated_body(const State& state) const {
  if (state.replicated) return static_cast<LeafNode&>(*state.node).parameter;
  const bool mirror_ends = state.node->kind() == Node::Kind::mirror && mode_.accumulate && !mode_.create_graph;
  return mirror_ends ? static_cast<MirrorNode&>(*state.node).body : nullptr;
}

// In a replica beside others: what is for a parameter whose home is elsewhere, until all replicas have returned.
bool GraphTask::waits(const State& state) const {
  if (!context_.kept_gradients) [[likely]]
    return false;
  return replicated_body(state) ||
         (state.node->is_leaf() && mode_.accumulate && context_.kept_gradients->wants(*state.node));
}

void GraphTask::keep(const State& state, Tensor gradient, SparseGradient rows) {
  const ParameterBody* body = replicated_body(state);
  // Nobody else may write the elements until then.
  if (gradient.defined() && !mode_.create_graph && !(gradient.contiguous_layout() && gradient.sole_owner()))
    gradient = gradient.clone();
  std::lock_guard lock(mutex_);
  kept_.push_back({body ? body->leaf : Ref<Node>(state.node), state.node->stream, body != nullptr, mode_.create_graph,
                   std::move(gradient), std::move(rows)});
}

// ---- gradients on their way

void GraphTask::deliver_rest(State& from, std::span<Tensor> gradients) {
  const auto edge_count = static_cast<std::uint32_t>(from.node->edges().size());
  for (; from.delivered < edge_count; ++from.delivered)
    if (const std::int32_t target = targets_[from.first_edge + from.delivered]; target >= 0)
      deliver(from, from.delivered, static_cast<std::uint32_t>(target),
              gradients.empty() ? Tensor() : std::move(gradients[from.delivered]));
}

void GraphTask::deliver(const State& from, std::uint32_t edge, std::uint32_t target, Tensor gradient) {
  State& to = states_[target];
  if (gradient.defined() && to.needed) {
    LOCKSTEP_EDGE(hand_over_gradient(gradient, *to.node->stream));
  } else {
    gradient = Tensor();
  }
  const std::uint32_t output = from.node->edges()[edge].index;
  if (lanes_.size() == 1) {  // in one thread the order is fixed anyway
    if (gradient.defined()) {
      LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *to.node->stream);
      add(to, output, std::move(gradient));
    }
    if (--to.pending == 0) make_ready(target);
    return;
  }
  Lane& lane = *lanes_[to.lane];
  std::lock_guard lock(lane.mutex);
  if (gradient.defined()) {
    const bool mirror = from.node->kind() == Node::Kind::mirror;
    const int origin = mirror ? static_cast<MirrorNode*>(from.node)->body->slot(ordinal(from.node->stream->device()))->replica.load()
                              : ordinal(from.node->stream->device());
    to.contributions.push_back({output, mirror ? 0 : from.node->sequence, origin, edge, std::move(gradient)});
  }
  if (--to.pending > 0) return;
  make_ready(target);
  if (lane.thread == nullptr) {
    lane.changed.notify_all();
  } else if (!lane.active) {
    lane.active = true;
    lane.thread->post([task = shared_from_this(), &lane] { task->run_lane(lane); });
  }
}

void GraphTask::add(State& target, std::uint32_t output, Tensor gradient) {
  Tensor& sum = target.gradients.empty() ? target.gradient : target.gradients[output];
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (target.summed && !mode_.create_graph && target.gradients.empty()) {
    sum.add_(gradient);
  } else {
    sum = sum + gradient;
    target.summed = true;
  }
}

void GraphTask::gather_contributions(State& state) {
  // Latest operation first, then by device or replica: never by who was faster.
  std::sort(state.contributions.begin(), state.contributions.end(), [](const Contribution& a, const Contribution& b) {
    return std::tuple(a.output, ~a.sequence, a.origin, a.edge) < std::tuple(b.output, ~b.sequence, b.origin, b.edge);
  });
  for (Contribution& contribution : state.contributions)
    add(state, contribution.output, std::move(contribution.gradient));
  state.contributions.clear();
}

void GraphTask::make_ready(std::uint32_t index) {
  const State& state = states_[index];
  auto& ready = lanes_[state.lane]->ready;
  ready.emplace_back(state.node->is_leaf() ? kRunsFirst : state.node->sequence, index);
  std::push_heap(ready.begin(), ready.end());
}

void GraphTask::finish_node() {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1 || lanes_.size() == 1) return;
  std::lock_guard lock(lanes_[0]->mutex);
  lanes_[0]->changed.notify_all();
}

void GraphTask::fail(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  failed_ = true;
}

void GraphTask::join_streams() {
  for (Stream* stream : streams_) LOCKSTEP_EDGE(current_stream(stream->device()).wait_for(*stream));
}

// ---- rows

// Not under create_graph, which differentiates matrices, and not where a hook is to see one.
bool GraphTask::takes_rows(std::int32_t target) const {
  if (target < 0 || !mode_.accumulate || mode_.create_graph) return false;
  const Node* leaf = states_[static_cast<std::size_t>(target)].node;
  if (leaf->kind() == Node::Kind::mirror) {
    const ParameterBody* body = static_cast<const MirrorNode*>(leaf)->body;
    leaf = body ? body->leaf.get() : nullptr;
  }
  return leaf && leaf->is_leaf() && (!leaf->hooks || leaf->hooks->empty());
}

void GraphTask::send_rows(const State& from, const Tensor& gradient) {
  const auto target = static_cast<std::uint32_t>(targets_[from.first_edge]);
  SparseGradient rows = static_cast<RowsNode*>(from.node)->rows(gradient);
  for (const Tensor& part : {rows.indices, rows.values})
    LOCKSTEP_EDGE(hand_over_gradient(part, *states_[target].node->stream));
  std::lock_guard lock(mutex_);
  states_[target].gets_rows = true;
  rows_.push_back({target, from.node->sequence, std::move(rows)});
}

// Adds the rows to the gradient where there is one; else they go on by themselves.
void GraphTask::receive_rows(std::uint32_t index, Tensor& gradient) {
  std::vector<Rows> mine;
  {
    std::lock_guard lock(mutex_);
    const auto others =
        std::stable_partition(rows_.begin(), rows_.end(), [&](const Rows& r) { return r.target != index; });
    mine.assign(std::make_move_iterator(others), std::make_move_iterator(rows_.end()));
    rows_.erase(others, rows_.end());
  }
  // Latest operation first, as for other gradients.
  std::stable_sort(mine.begin(), mine.end(), [](const Rows& a, const Rows& b) { return a.sequence > b.sequence; });
  std::vector<SparseGradient> pieces;
  for (Rows& rows : mine) pieces.push_back(std::move(rows.gradient));
  SparseGradient joined = join_rows(pieces);
  const State& state = states_[index];
  if (gradient.defined()) {
    gradient = index_add(gradient, 0, joined.indices, joined.values);
  } else if (waits(state)) {
    keep(state, {}, std::move(joined));
  } else if (ParameterBody* body = replicated_body(state)) {
    std::lock_guard lock(mutex_);
    replicated_.push_back({body, state.node->stream->device(), std::move(joined)});
  } else if (state.node->is_leaf()) {  // not a mirror whose parameter is gone
    static_cast<LeafNode*>(state.node)->accumulate_rows(std::move(joined));
  }
}

}  // namespace lockstep::detail
