// Finding the graph: which nodes there are, which must run, and on which threads.
#include <algorithm>
#include <bit>

#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/engine/graph_task.h"

namespace lockstep::detail {

StreamBody& stream_of(const Node& node) {
  const Capture* const capture = current_capture;
  if (!capture || capture->device() != node.stream->device || capture->records(*node.stream)) [[likely]]
    return *node.stream;
  return current_stream(node.stream->device).body();
}

namespace {
// What the calling thread runs itself: nodes on plain memory, and those of the device whose thread is calling.
bool runs_here(Device device) {
  return device.is_cpu() || (DeviceThread::current() && DeviceThread::current()->device() == device);
}

// A hook there that starts a backward of its own: two threads that wait for each other would never end.
bool on_backward_thread() {
  const DeviceThread* thread = DeviceThread::current();
  return thread && thread == &backward_thread(thread->device());
}
}  // namespace

std::pair<Node*, std::uint32_t>& GraphTask::place_of(const Node* node) {
  std::size_t at = (reinterpret_cast<std::uintptr_t>(node) >> 5) & (index_.size() - 1);
  while (index_[at].first && index_[at].first != node) at = (at + 1) & (index_.size() - 1);
  return index_[at];
}

std::uint32_t GraphTask::index_of(Node* node) {
  if (states_.size() * 2 >= index_.size()) {
    index_.assign(std::bit_ceil(std::max<std::size_t>(64, states_.size() * 4)), {});
    for (std::uint32_t i = 0; i < states_.size(); ++i) place_of(states_[i].node) = {states_[i].node, i};
  }
  auto& place = place_of(node);
  if (!place.first) {
    place = {node, static_cast<std::uint32_t>(states_.size())};
    State& state = states_.emplace_back();
    state.node = node;
    if (node->output_count > 1) state.gradients.resize(node->output_count);
  }
  return place.second;
}

void GraphTask::traverse() {
  // Mirrors end a plain backward while they have an owner; otherwise their edge home is an edge like any other.
  const bool mirrors_end = mode_.accumulate && !mode_.create_graph;
  for (const Root& root : roots_) index_of(root.edge.node.get());
  // Breadth first; states_ is the queue.
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    Node* node = states_[i].node;
    states_[i].first_edge = static_cast<std::uint32_t>(targets_.size());
    if (node->kind() == Node::Kind::mirror) {
      const auto* mirror = static_cast<const MirrorNode*>(node);
      states_[i].replica = mirror->replica();
      if (mirrors_end) states_[i].owner = claims_.hold(mirror->owner());
    }
    for (const Edge& edge : node->edges()) {
      if (!edge.node || states_[i].owner) {
        targets_.push_back(-1);
        continue;
      }
      const std::uint32_t target = index_of(edge.node.get());
      ++states_[target].pending;
      targets_.push_back(static_cast<std::int32_t>(target));
    }
  }
  for (const Root& root : roots_) ++states_[index_of(root.edge.node.get())].pending;

  sink_ = context_.gradient_sink;
  if (!mirrors_end) return;
  // One call at a time trains a leaf; and what leaves with mirrors in this graph get is summed at its end.
  std::vector<LeafOwner*> mirrored;
  for (const State& state : states_) {
    if (state.owner) mirrored.push_back(state.owner);
    if (state.node->is_leaf()) claims_.hold(static_cast<const LeafNode*>(state.node)->owner());
  }
  claims_.claim(context_.training_call);
  if (mirrored.empty()) return;
  if (!sink_) sink_ = &mirrored.front()->sink();
  std::sort(mirrored.begin(), mirrored.end());
  for (State& state : states_) {
    if (!state.node->is_leaf()) continue;
    LeafOwner* owner = static_cast<const LeafNode*>(state.node)->owner();
    if (owner && std::binary_search(mirrored.begin(), mirrored.end(), owner)) state.owner = owner;
  }
}

void GraphTask::mark_needed() {
  if (mode_.accumulate) return;
  // Only what lies on a way from a root to a captured edge has to run: mark back from the captures, edges reversed.
  for (State& state : states_) state.needed = state.runs = false;
  std::vector<std::vector<std::uint32_t>> sources(states_.size());
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    for (std::uint32_t e = 0; e < states_[i].node->edges().size(); ++e)
      if (const std::int32_t target = targets_[states_[i].first_edge + e]; target >= 0)
        sources[static_cast<std::size_t>(target)].push_back(i);
  std::vector<std::uint32_t> queue;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const auto& [node, i] = place_of(captures_[c].node.get());
    if (!node) continue;  // nothing leads there
    capture_reached[c] = true;
    states_[i].captured = true;
    captures_at_.emplace_back(i, static_cast<std::uint32_t>(c));
    if (!states_[i].needed) queue.push_back(i);
    states_[i].needed = true;
  }
  std::sort(captures_at_.begin(), captures_at_.end());
  while (!queue.empty()) {
    const std::uint32_t i = queue.back();
    queue.pop_back();
    for (std::uint32_t source : sources[i]) {
      states_[source].runs = true;
      if (!states_[source].needed) {
        states_[source].needed = true;
        queue.push_back(source);
      }
    }
  }
}

void GraphTask::assign_workers() {
  workers_.push_back(std::make_unique<Worker>());  // the calling thread
  std::vector<Device> devices;
  for (const State& state : states_) {
    const Device device = state.node->stream->device;
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
    StreamBody* const stream = &stream_of(*state.node);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  }
  // One device: waking another thread would cost more than it brings.
  const auto accelerators_used = std::count_if(devices.begin(), devices.end(), [](Device d) { return !d.is_cpu(); });
  if (on_backward_thread() || accelerators_used < 2) {
    workers_[0]->ready.reserve(states_.size());
    return;
  }
  std::vector<std::pair<Device, std::uint16_t>> worker_of;
  for (Device device : devices) {
    if (runs_here(device)) continue;
    worker_of.emplace_back(device, static_cast<std::uint16_t>(workers_.size()));
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->thread = &backward_thread(device);
  }
  for (State& state : states_)
    for (const auto& [device, worker] : worker_of)
      if (state.node->stream->device == device) state.worker = worker;
  std::vector<std::size_t> nodes(workers_.size());
  for (const State& state : states_) ++nodes[state.worker];
  for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i]->ready.reserve(nodes[i]);
}

}  // namespace lockstep::detail
