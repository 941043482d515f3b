#include "lockstep/tensor/autograd/record.h"

#include <array>
#include <utility>

#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/nn/mirror.h"
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

namespace {
std::string origin_of(const Node& node) {
  if (!node.is_leaf()) return cat("a result of '", node.name(), "'");
  const ParameterBody* parameter = static_cast<const LeafNode&>(node).parameter;
  return parameter ? parameter->describe() : "a leaf";
}
}  // namespace

void run_gradient_hooks(const Node& node, std::span<Tensor> gradients) {
  const std::vector<Node::Hook> hooks = *node.hooks;  // they may remove themselves
  for (const Node::Hook& hook : hooks) {
    Tensor& gradient = gradients[hook.output];
    if (!gradient.defined()) continue;
    const Tensor before = gradient;
    hook.call(gradient);
    LOCKSTEP_CHECK(gradient.defined() && gradient.shape() == before.shape() && gradient.dtype() == before.dtype() &&
                       gradient.device() == before.device(),
                   "[backward] expected the hook on ", origin_of(node), " to leave a gradient like ", before.describe(),
                   ", got ", gradient.describe());
  }
}

}  // namespace detail

void LeafNode::backward(std::span<Tensor> output_gradients, std::span<Tensor>) {
  accumulate(std::move(output_gradients[0]));
}

void LeafNode::run_after_accumulate() {
  const std::vector<AfterAccumulate> calls = after_accumulate;  // they may remove themselves
  for (const AfterAccumulate& hook : calls) hook.call();
}

void LeafNode::accumulate(Tensor gradient) {
  LOCKSTEP_CHECK(gradient.shape() == shape && gradient.dtype() == dtype,
                 "[backward] expected an operation that gives ", parameter ? parameter->describe() : "a leaf",
                 " a gradient of ", dtype, shape, ", got ", gradient.describe());
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
  run_after_accumulate();
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
  run_after_accumulate();
}

}  // namespace lockstep
