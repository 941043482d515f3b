#include "lockstep/tensor/engine/graph_task.h"

#include <algorithm>
#include <thread>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

namespace {
// Leaves and mirrors that end here free their gradients as soon as they are complete, and begin their way home.
constexpr std::uint64_t kRunsFirst = ~std::uint64_t{0};
}  // namespace

namespace {
// A gradient of a node with results on several devices, which is not on the device of the node's stream, is read on the
// stream that is current there: after the node's, which has waited for whoever made the gradient.
void follow(const Stream& of_node, const Tensor& gradient) {
  const Device device = gradient.device();
  if (device == of_node.device()) [[likely]]
    return;
  const Stream there = current_stream(device);
  LOCKSTEP_EDGE(there.wait_for(of_node));
  LOCKSTEP_EDGE(gradient.storage()->record_use(there));
}
}  // namespace

void hand_over_gradient(const Tensor& gradient, const Stream& receiver) {
  const Stream made_on = current_stream(gradient.device());
  if (&made_on == &receiver) return;
  LOCKSTEP_EDGE(receiver.wait_for(made_on));
  LOCKSTEP_EDGE(gradient.storage()->record_use(receiver));
}

GraphTask*& GraphTask::current() {
  static thread_local GraphTask* task = nullptr;
  return task;
}

GraphTask::GraphTask(std::vector<Root> roots, std::vector<Edge> captures, Mode mode)
    : roots_(std::move(roots)), captures_(std::move(captures)), mode_(mode), context_(thread_context()) {
  captured_.resize(captures_.size());
  capture_reached.resize(captures_.size());
  context_.grad_enabled = mode_.create_graph;
  context_.autocast = false;  // gradients have the dtypes of the forward
  context_.autocast_cache = nullptr;
  if (context_.training_call == 0) context_.training_call = next_training_call();
  traverse();
  mark_needed();
  assign_workers();
}

LeafOwner* GraphTask::Claims::hold(LeafOwner* owner) {
  std::shared_ptr<LeafOwner> held = owner ? owner->hold() : nullptr;
  return held ? owners.emplace_back(std::move(held)).get() : nullptr;
}

void GraphTask::Claims::claim(std::uint64_t call) {
  while (claimed < owners.size()) {
    LeafOwner* const owner = owners[claimed].get();
    const bool first = owner->begin_backward(call, this);
    ++claimed;
    if (!first) nested.push_back(owner);
  }
  std::ranges::sort(nested);
}

void GraphTask::Claims::release() {
  while (claimed > 0) owners[--claimed]->end_backward(this);
  owners.clear();
}

// ---- running it

std::vector<Tensor> GraphTask::run() {
  // When nothing runs any more, a worker may still be the last to let go of this object. What it held of the caller's
  // must not die in that thread, after the caller has gone on (and has unloaded the code of a node, say).
  struct Forget {
    GraphTask& task;
    ~Forget() { task.forget(); }
  } forget{*this};
  remaining_ = states_.size();
  if (Recorder* const recorder = Recorder::active()) {
    recorder->forget_hand_overs(this);
    for (const State& state : states_) recorder->forget_hand_overs(&state);
  }
  {
    ContextScope context(context_);
    expect_gradients();
    try {
      start();
    } catch (...) {
      if (own_sink_) own_sink_->end();
      throw;
    }
    wait_for_workers();
    struct Release {
      GraphTask& task;
      ~Release() {
        if (task.own_sink_) task.own_sink_->end();
        task.claims_.release();
      }
    } release{*this};
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    join_streams();
    if (!owned_.empty()) sink_->finish(std::move(owned_));
    if (GraphTask* const outer = current()) outer->join_too(*this);
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
  return std::move(captured_);
}

// Does nothing when nodes are left to run: either it never started, and has one owner, or it ran out of time, and what
// still runs needs all of it.
void GraphTask::forget() noexcept {
  if (remaining_.load(std::memory_order_acquire) != 0) return;
  states_.clear();
  captured_.clear();
  captures_at_.clear();
  callbacks.clear();
  owned_.clear();
  rows_.clear();
  captures_.clear();
  roots_.clear();
  own_sink_.reset();
}

void GraphTask::expect_gradients() {
  if (!sink_ || workers_.size() == 1) return;
  // Where the work of replicas is over when a call returns there is nothing to do beside it.
  if (std::ranges::any_of(states_, [](const State& state) { return state.owner && state.node->stream->synchronous; }))
    return;
  std::vector<std::uint64_t> first_use(states_.size(), ~std::uint64_t{0});
  for (const State& state : states_) {
    for (std::uint32_t e = 0; e < state.node->edges().size(); ++e)
      if (const std::int32_t target = targets_[state.first_edge + e]; target >= 0) {
        std::uint64_t& first = first_use[static_cast<std::size_t>(target)];
        first = std::min(first, state.node->sequence);
      }
  }
  std::vector<ExpectedGradient> expected;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (!state.owner || claims_.has_nested(state.owner)) continue;
    Node* leaf = state.node->is_leaf() ? state.node : state.node->edges()[0].node.get();
    expected.push_back({static_cast<LeafNode*>(leaf), &stream_of(*state.node), first_use[i]});
  }
  if (expected.empty()) return;
  own_sink_ = sink_->for_one_backward(expected);
  if (own_sink_) sink_ = own_sink_.get();
}

// Nothing runs yet, so what throws here leaves nothing behind.
void GraphTask::start() {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t r = 0; r < roots_.size(); ++r) {
    State& state = states_[indices.emplace_back(index_of(roots_[r].edge.node.get()))];
    LOCKSTEP_EDGE(hand_over_gradient(roots_[r].gradient, stream_of(*state.node)));
    if (workers_.size() > 1)
      state.contributions.push_back({roots_[r].edge.index, kRunsFirst - r, 0, 0, roots_[r].gradient});
    else
      add(state, roots_[r].edge.index, roots_[r].gradient);
  }
  for (const std::uint32_t index : indices)
    if (--states_[index].pending == 0) make_ready(index);
  // All that is ready first: a worker that runs decides by itself when it has nothing more to do.
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    const std::lock_guard lock(workers_[i]->mutex);
    if (!workers_[i]->ready.empty()) wake(*workers_[i]);
  }
}

// Of workers whose threads could not be told: everything fails by then, and only has to be counted.
bool GraphTask::run_refused() {
  bool any = false;
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    {
      const std::lock_guard lock(workers_[i]->mutex);
      if (!workers_[i]->refused) continue;
    }
    while (run_next(*workers_[i])) any = true;
  }
  return any;
}

void GraphTask::wait_for_workers() {
  GraphTask* outer = std::exchange(current(), this);
  Worker& here = *workers_[0];
  Deadline deadline = Deadline::after(kDefaultTimeout);
  std::size_t left = remaining_.load(std::memory_order_acquire);
  bool in_time = true;
  while (in_time) {
    const std::uint32_t refused = refused_.load(std::memory_order_acquire);
    while (run_next(here) || (refused > 0 && run_refused())) {
    }
    if (remaining_.load(std::memory_order_acquire) == 0) break;
    // The others are at work: look again a few times, then sleep.
    std::unique_lock lock(here.mutex);
    const auto something = [&] {
      return !here.ready.empty() || remaining_.load(std::memory_order_acquire) == 0 ||
             refused_.load(std::memory_order_acquire) != refused;
    };
    for (int spin = 0; spin < 20 && !something(); ++spin) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    in_time = wait_until(here.changed, lock, deadline, something);
    // A graph may take long, as long as it gets on.
    if (const std::size_t now = remaining_.load(std::memory_order_acquire); now < left) {
      left = now;
      deadline = Deadline::after(kDefaultTimeout);
      in_time = true;
    }
  }
  if (Recorder* const recorder = Recorder::active()) recorder->take_over(this);
  current() = outer;
  if (!in_time) {
    failed_ = true;  // what still runs ends by itself; it keeps this task alive
    throw TimeoutError(cat("[backward] expected the graph to get on within 10 minutes, but ", left, " of ",
                           states_.size(), " nodes are still to run"));
  }
}

void GraphTask::run_worker(Worker& worker) {
  ContextScope context(context_);
  GraphTask* outer = std::exchange(current(), this);
  for (;;) {
    while (run_next(worker)) {
    }
    std::lock_guard lock(worker.mutex);
    if (worker.ready.empty()) {
      worker.active = false;
      break;
    }
  }
  current() = outer;
}

bool GraphTask::run_next(Worker& worker) {
  std::uint32_t index;
  {
    std::lock_guard lock(worker.mutex);
    if (worker.ready.empty()) return false;
    std::pop_heap(worker.ready.begin(), worker.ready.end());
    index = worker.ready.back().second;
    worker.ready.pop_back();
  }
  if (Recorder* const recorder = Recorder::active(); recorder && workers_.size() > 1)
    recorder->take_over(&states_[index]);
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
    LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream_of(node));
    if (!state.contributions.empty()) gather_contributions(state);
    const std::span<Tensor> outputs =
        state.gradients.empty() ? std::span<Tensor>(&state.gradient, 1) : std::span<Tensor>(state.gradients);
    if (state.gets_rows) [[unlikely]]
      receive_rows(index, outputs[0]);
    const bool arrived = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& g) { return g.defined(); });
    if (arrived) {
      // The hooks of a leaf with mirrors wait for the sum over the replicas.
      if (node.hooks && !(node.is_leaf() && state.owner)) run_gradient_hooks(node, outputs);
      if (state.captured)
        for (auto at = std::lower_bound(captures_at_.begin(), captures_at_.end(), std::pair(index, 0U));
             at != captures_at_.end() && at->first == index; ++at)
          captured_[at->second] = outputs[captures_[at->second].index];
      if (is_for_sink(state)) [[unlikely]] {
        give_to_sink(state, std::move(outputs[0]), {});
      } else if (node.is_leaf() ? mode_.accumulate : state.runs) {
        if (node.gives_rows() && takes_rows(targets_[state.first_edge])) [[unlikely]] {
          send_rows(state, outputs[0]);
        } else {
          node.backward(outputs, inputs);
        }
        if (!mode_.retain_graph && !mode_.create_graph) node.release_saved();
      }
    }
    for (Tensor& gradient : outputs) gradient = Tensor();
    deliver_rest(state, inputs);
    return;
  }
  deliver_rest(state, {});
}

bool GraphTask::is_for_sink(const State& state) const {
  if (!sink_) [[likely]]
    return false;
  return state.owner ||
         (state.node->is_leaf() && mode_.accumulate && sink_->wants(static_cast<LeafNode&>(*state.node)));
}

void GraphTask::give_to_sink(const State& state, Tensor matrix, SparseGradient rows) {
  Node* leaf = state.node->is_leaf() ? state.node : state.node->edges()[0].node.get();
  OwnedGradient gradient{Ref<LeafNode>(static_cast<LeafNode*>(leaf)),
                         &stream_of(*state.node),
                         state.owner != nullptr,
                         mode_.create_graph,
                         std::move(matrix),
                         std::move(rows),
                         claims_.has_nested(state.owner)};
  sink_->arrive(gradient);
  std::lock_guard lock(mutex_);
  owned_.push_back(std::move(gradient));
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
    if (to.node->is_leaf()) gradient = static_cast<const LeafNode*>(to.node)->brought_home(gradient);
    LOCKSTEP_EDGE(hand_over_gradient(gradient, stream_of(*to.node)));
  } else {
    gradient = Tensor();
  }
  const std::uint32_t output = from.node->edges()[edge].index;
  if (workers_.size() == 1) {  // in one thread the order is fixed anyway
    if (gradient.defined()) {
      LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream_of(*to.node));
      add(to, output, std::move(gradient));
    }
    arrived(target);
    return;
  }
  Worker& worker = *workers_[to.worker];
  std::lock_guard lock(worker.mutex);
  if (gradient.defined()) {
    const bool mirror = from.node->kind() == Node::Kind::mirror;
    const int origin = mirror ? from.replica : ordinal(from.node->stream->device);
    to.contributions.push_back({output, mirror ? 0 : from.node->sequence, origin, edge, std::move(gradient)});
  }
  if (Recorder* const recorder = Recorder::active()) recorder->hand_over(&to);
  arrived(target);
}

void GraphTask::add(State& target, std::uint32_t output, Tensor gradient) {
  follow(stream_of(*target.node), gradient);
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

// Counts an edge as served. From here on nothing can fail: who delivers an edge twice lets a node run too early, and
// who delivers it not at all lets it wait for ever.
void GraphTask::arrived(std::uint32_t target) noexcept {
  State& to = states_[target];
  if (--to.pending > 0) return;
  make_ready(target);
  if (workers_.size() > 1) wake(*workers_[to.worker]);
}

void GraphTask::make_ready(std::uint32_t index) noexcept {
  const State& state = states_[index];
  auto& ready = workers_[state.worker]->ready;  // there is room for all nodes of the worker
  const bool ends_here = state.node->is_leaf() || state.owner;
  ready.emplace_back(ends_here ? kRunsFirst : state.node->sequence, index);
  std::push_heap(ready.begin(), ready.end());
}

// Under the worker's mutex.
void GraphTask::wake(Worker& worker) noexcept {
  if (worker.thread == nullptr) return worker.changed.notify_all();
  if (!worker.active) {
    worker.active = true;
    try {
      worker.thread->post([task = shared_from_this(), &worker] { task->run_worker(worker); });
    } catch (...) {
      fail(std::current_exception());
      worker.refused = true;
    }
  }
  if (!worker.refused) [[likely]]
    return;
  const std::lock_guard lock(workers_[0]->mutex);
  refused_.fetch_add(1, std::memory_order_acq_rel);
  workers_[0]->changed.notify_all();
}

void GraphTask::finish_node() noexcept {
  if (Recorder* const recorder = Recorder::active(); recorder && workers_.size() > 1) recorder->hand_over(this);
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1 || workers_.size() == 1) return;
  std::lock_guard lock(workers_[0]->mutex);
  workers_[0]->changed.notify_all();
}

void GraphTask::fail(std::exception_ptr error) noexcept {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

// Of a task that has run in a hook of this one, where other streams may be current than where this one was called. What
// comes after this one comes after that one, too.
void GraphTask::join_too(const GraphTask& inner) {
  const auto join = [&](Device device) {
    StreamBody* stream = nullptr;
    LOCKSTEP_EDGE(stream = &current_stream(device).body());
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  };
  const std::lock_guard lock(mutex_);
  for (const StreamBody* stream : inner.streams_) join(stream->device);
  for (const State& state : inner.states_)
    if (state.owner && state.node->kind() == Node::Kind::mirror)
      join(static_cast<const LeafNode&>(*state.node->edges()[0].node).stream->device);
}

void GraphTask::join_streams() {
  for (detail::StreamBody* stream : streams_) LOCKSTEP_EDGE(current_stream(stream->device).wait_for(*stream));
}

}  // namespace lockstep::detail
