#include "lockstep/tensor/autograd/graph_task.h"

#include <algorithm>
#include <bit>
#include <thread>

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/ops_math.h"

namespace lockstep::detail {

namespace {
constexpr std::uint64_t kRunsFirst = ~std::uint64_t{0};  // leaves free their gradients as soon as they are complete

// What the calling thread runs itself: nodes on plain memory, and those of the device whose thread is calling.
bool runs_here(Device device) {
  return device.is_cpu() || (DeviceThread::current() && DeviceThread::current()->device() == device);
}

// A hook on a lane that starts a backward of its own: two lanes that wait for each other would never end.
bool on_a_lane() {
  const DeviceThread* thread = DeviceThread::current();
  return thread && thread == &backward_lane(thread->device());
}

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
  if (context_.training_call == 0) context_.training_call = next_training_call();
  traverse();
  mark_needed();
  assign_lanes();
}

void GraphTask::Claims::release() {
  for (ParameterBody* body : bodies) body->unclaim();
  bodies.clear();
}

// ---- finding the graph

std::uint32_t GraphTask::index_of(Node* node) {
  if (states_.size() * 2 >= index_.size()) {
    index_.assign(std::bit_ceil(std::max<std::size_t>(64, states_.size() * 4)), {});
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      std::size_t at = (reinterpret_cast<std::uintptr_t>(states_[i].node) >> 5) & (index_.size() - 1);
      while (index_[at].first) at = (at + 1) & (index_.size() - 1);
      index_[at] = {states_[i].node, i};
    }
  }
  std::size_t at = (reinterpret_cast<std::uintptr_t>(node) >> 5) & (index_.size() - 1);
  while (index_[at].first && index_[at].first != node) at = (at + 1) & (index_.size() - 1);
  if (!index_[at].first) {
    index_[at] = {node, static_cast<std::uint32_t>(states_.size())};
    State& state = states_.emplace_back();
    state.node = node;
    if (node->output_count > 1) state.gradients.resize(node->output_count);
  }
  return index_[at].second;
}

void GraphTask::traverse() {
  // Mirrors end a plain backward; otherwise their edge home is an edge like any other.
  const bool mirrors_end = mode_.accumulate && !mode_.create_graph;
  for (const Root& root : roots_) index_of(root.edge.node.get());
  // Breadth first; states_ is the queue.
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    Node* node = states_[i].node;
    states_[i].first_edge = static_cast<std::uint32_t>(targets_.size());
    for (const Edge& edge : node->edges()) {
      if (!edge.node || (mirrors_end && node->kind() == Node::Kind::mirror)) {
        targets_.push_back(-1);
        continue;
      }
      const std::uint32_t target = index_of(edge.node.get());
      ++states_[target].pending;
      targets_.push_back(static_cast<std::int32_t>(target));
    }
  }
  for (const Root& root : roots_) ++states_[index_of(root.edge.node.get())].pending;

  if (!mirrors_end) return;
  // One call at a time trains a parameter; and parameters with mirrors in this graph are summed at its end.
  std::vector<ParameterBody*> mirrored;
  for (const State& state : states_) {
    ParameterBody* body = nullptr;
    if (state.node->kind() == Node::Kind::mirror) {
      body = static_cast<MirrorNode*>(state.node)->body;
      if (body) mirrored.push_back(body);
    } else if (state.node->is_leaf()) {
      body = static_cast<LeafNode*>(state.node)->parameter;
    }
    if (!body) continue;
    LOCKSTEP_CHECK(body->listed, "[backward] ", body->describe(),
                   " takes part in the graph, but no module's members() lists it");
    claims_.bodies.reserve(claims_.bodies.size() + 1);
    body->claim(context_.training_call);
    claims_.bodies.push_back(body);
  }
  if (mirrored.empty()) return;
  std::sort(mirrored.begin(), mirrored.end());
  for (State& state : states_)
    if (state.node->is_leaf())
      if (ParameterBody* body = static_cast<LeafNode*>(state.node)->parameter)
        state.replicated = std::binary_search(mirrored.begin(), mirrored.end(), body);
}

void GraphTask::mark_needed() {
  if (mode_.accumulate) return;
  // Only what lies on a way from a root to a captured edge has to run: mark back from the captures, edges reversed.
  for (State& state : states_) state.needed = false;
  std::vector<std::vector<std::uint32_t>> sources(states_.size());
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    for (std::uint32_t e = 0; e < states_[i].node->edges().size(); ++e)
      if (const std::int32_t target = targets_[states_[i].first_edge + e]; target >= 0)
        sources[static_cast<std::size_t>(target)].push_back(i);
  std::vector<std::uint32_t> queue;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const std::size_t known = states_.size();
    const std::uint32_t i = index_of(captures_[c].node.get());
    if (i == known) {  // nothing leads there
      index_.clear();
      states_.pop_back();
      continue;
    }
    capture_reached[c] = true;
    states_[i].captured = true;
    if (!states_[i].needed) queue.push_back(i);
    states_[i].needed = true;
  }
  while (!queue.empty()) {
    const std::uint32_t i = queue.back();
    queue.pop_back();
    for (std::uint32_t source : sources[i])
      if (!states_[source].needed) {
        states_[source].needed = true;
        queue.push_back(source);
      }
  }
}

void GraphTask::assign_lanes() {
  lanes_.push_back(std::make_unique<Lane>());  // the calling thread
  std::vector<Device> devices;
  for (const State& state : states_) {
    const Device device = state.node->stream->device();
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
    if (std::find(streams_.begin(), streams_.end(), state.node->stream) == streams_.end())
      streams_.push_back(state.node->stream);
  }
  // One device: waking another thread would cost more than it brings.
  const auto accelerators_used = std::count_if(devices.begin(), devices.end(), [](Device d) { return !d.is_cpu(); });
  if (on_a_lane() || accelerators_used < 2) return;
  std::vector<std::pair<Device, std::uint16_t>> lane_of;
  for (Device device : devices) {
    if (runs_here(device)) continue;
    lane_of.emplace_back(device, static_cast<std::uint16_t>(lanes_.size()));
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->thread = &backward_lane(device);
  }
  for (State& state : states_)
    for (const auto& [device, lane] : lane_of)
      if (state.node->stream->device() == device) state.lane = lane;
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
  const Deadline deadline = Deadline::after(kDefaultTimeout);
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
  }
  current() = outer;
  if (!in_time) {
    failed_ = true;  // what still runs ends by itself; it keeps this task alive
    throw TimeoutError("[backward] expected the graph to finish within 10 minutes; some nodes are still running");
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
    const bool arrived = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& g) { return g.defined(); });
    if (arrived) {
      // The hooks of a replicated parameter wait for the sum over the replicas.
      if (node.hooks && !state.replicated) run_hooks(state, outputs);
      if (state.captured)
        for (std::size_t c = 0; c < captures_.size(); ++c)
          if (captures_[c].node.get() == &node) captured[c] = outputs[captures_[c].index];
      const bool mirror = node.kind() == Node::Kind::mirror;
      const bool mirror_ends = mirror && mode_.accumulate && !mode_.create_graph;
      ParameterBody* body = mirror_ends         ? static_cast<MirrorNode&>(node).body
                            : state.replicated ? static_cast<LeafNode&>(node).parameter
                                               : nullptr;
      if (body) {
        const Device device = node.stream->device();
        store_replica_gradient(*body, device, outputs[0]);
        std::lock_guard lock(mutex_);
        replicated_.push_back({body, device});
      } else if (node.is_leaf() ? mode_.accumulate : !mirror_ends) {
        node.backward(outputs, inputs);
        if (!mode_.retain_graph && !mode_.create_graph) node.release();
      }
    }
    for (Tensor& gradient : outputs) gradient = Tensor();
    deliver_rest(state, inputs);
    return;
  }
  deliver_rest(state, {});
}

void GraphTask::run_hooks(State& state, std::span<Tensor> gradients) {
  for (const Node::Hook& hook : *state.node->hooks) {
    Tensor& gradient = gradients[hook.output];
    if (!gradient.defined()) continue;
    const Shape shape = gradient.shape();
    hook.call(gradient);
    LOCKSTEP_CHECK(gradient.defined() && gradient.shape() == shape, "[backward] expected the hook on a result of '",
                   state.node->name(), "' to keep a gradient of shape ", shape, ", got ", gradient.describe());
  }
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

}  // namespace lockstep::detail
