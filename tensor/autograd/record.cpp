#include "lockstep/tensor/autograd/record.h"

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/ops_math.h"

namespace lockstep {

Node::~Node() = default;

void Node::destroy(Node* node) noexcept {
  // Freeing a node drops its edges and saved tensors, which may free further nodes: they queue up here.
  static thread_local std::vector<Node*>* queue = nullptr;
  if (queue) {
    queue->push_back(node);
    return;
  }
  std::vector<Node*> pending{node};
  queue = &pending;
  while (!pending.empty()) {
    Node* next = pending.back();
    pending.pop_back();
    delete next;
  }
  queue = nullptr;
}

namespace detail {

void attach(Node& node, const Tensor& output, std::uint32_t index) {
  if (node.stream == nullptr) {
    LOCKSTEP_EDGE(node.stream = &current_stream(output.device()));
    node.sequence = ++thread_context().sequence;
  }
  output.set_edge({Ref<Node>(&node), index});
}

Ref<Node> make_leaf(const Tensor& tensor) {
  Ref<LeafNode> node(new LeafNode);
  node->shape = tensor.shape();
  node->dtype = tensor.dtype();
  LOCKSTEP_EDGE(node->stream = &current_stream(tensor.device()));
  return node;
}

}  // namespace detail

void Saved::save(const Tensor& input) {
  state_ = State::input;
  tensor_ = input;
  version_ = input.defined() ? input.version() : 0;
}

void Saved::save_output(const Tensor& output, std::uint32_t index) {
  state_ = State::output;
  tensor_ = output.detach();
  index_ = index;
  version_ = output.version();
}

Tensor Saved::get(Node& self) const {
  if (state_ == State::freed) [[unlikely]]
    throw Error(cat("[", self.name(),
                    "] backward a second time through a graph whose saved tensors were freed; pass retain_graph = true "
                    "to the first backward"));
  if (!tensor_.defined()) return {};
  if (tensor_.version() != version_) [[unlikely]]
    throw Error(cat("[", self.name(), "] a tensor saved for backward, ", tensor_.describe(),
                    ", was changed in place: expected version ", version_, ", got ", tensor_.version()));
  if (state_ == State::input) return tensor_;
  Tensor output = tensor_.detach();
  output.set_edge({Ref<Node>(&self), index_});
  return output;
}

void LeafNode::backward(std::span<Tensor> output_gradients, std::span<Tensor>) {
  accumulate(std::move(output_gradients[0]));
}

void LeafNode::accumulate(Tensor gradient) {
  {
    std::lock_guard lock(mutex);
    if (grad.defined()) {
      // Differentiable gradients must not be written over; others are, which keeps views of slabs in place.
      if (GradMode::enabled()) grad = grad + gradient;
      else grad.add_(gradient);
    } else if (GradMode::enabled() || !gradient.contiguous_layout() || !gradient.sole_owner()) {
      grad = gradient.clone();  // somebody else sees these elements
    } else {
      grad = std::move(gradient);
    }
  }
  for (auto& call : after_accumulate) call();
}

}  // namespace lockstep
