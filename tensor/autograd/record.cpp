#include "lockstep/tensor/autograd/record.h"

#include <array>
#include <utility>

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

void LeafNode::backward(std::span<Tensor> output_gradients, std::span<Tensor>) {
  accumulate(std::move(output_gradients[0]));
}

void LeafNode::accumulate(Tensor gradient) {
  {
    std::lock_guard lock(mutex);
    if (sparse.defined()) grad = std::exchange(sparse, {}).to_dense();
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
  for (auto& hook : after_accumulate) hook.call();
}

void LeafNode::accumulate_rows(SparseGradient rows) {
  {
    std::lock_guard lock(mutex);
    if (grad.defined()) {
      detail::add_rows(grad, rows.indices, rows.values);
    } else if (sparse.defined()) {
      sparse = detail::join_rows(std::array{sparse, rows});
    } else {
      sparse = std::move(rows);
    }
  }
  for (auto& hook : after_accumulate) hook.call();
}

}  // namespace lockstep
