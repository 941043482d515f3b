#include "lockstep/tensor/engine/leaf_node.h"

#include <array>
#include <atomic>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/engine/gradient_sink.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

namespace detail {

Ref<Node> make_leaf(const Tensor& tensor) {
  Ref<LeafNode> node(new LeafNode);
  node->shape = tensor.shape();
  node->format = tensor.memory_format();
  node->dtype = tensor.dtype();
  LOCKSTEP_EDGE(node->stream = &current_stream(tensor.device()).body());
  return node;
}

namespace {
// Before rows that another stream may have written are read for the last time.
void keep_for_current_stream(const SparseGradient& rows) {
  for (const Tensor& part : {rows.indices, rows.values})
    LOCKSTEP_EDGE(part.storage()->record_use(current_stream(part.device())));
}

std::string origin_of(const Node& node) {
  if (!node.is_leaf()) return cat("a result of '", node.name(), "'");
  const LeafOwner* owner = static_cast<const LeafNode&>(node).owner();
  return owner ? owner->describe() : "a leaf";
}
}  // namespace

void run_gradient_hooks(const Node& node, std::span<Tensor> gradients) {
  const std::vector<Node::Hook> hooks = *node.hooks;  // they may remove themselves
  for (const Node::Hook& hook : hooks) {
    Tensor& gradient = gradients[hook.output];
    if (!gradient.defined()) continue;
    const Tensor before = gradient;
    hook.function(gradient);
    LOCKSTEP_CHECK(gradient.defined() && gradient.shape() == before.shape() && gradient.dtype() == before.dtype() &&
                       gradient.device() == before.device(),
                   "[backward] expected the hook on ", origin_of(node), " to leave a gradient like ", before.describe(),
                   ", got ", gradient.describe());
  }
}

}  // namespace detail

void LeafNode::backward(std::span<Tensor> grad_outputs, std::span<Tensor>) { accumulate(std::move(grad_outputs[0])); }

void LeafNode::run_post_accumulate_hooks() {
  const std::vector<PostAccumulateHook> to_run = post_accumulate_hooks;  // they may remove themselves
  for (const PostAccumulateHook& hook : to_run) hook.function();
}

void LeafNode::move_to(Device device, DType to_dtype) {
  earlier_dtypes |= 1u << static_cast<int>(dtype);
  dtype = to_dtype;
  LOCKSTEP_EDGE(stream = &current_stream(device).body());
}

Tensor LeafNode::brought_home(const Tensor& gradient) const {
  const Device home = stream->device;
  Tensor here = gradient.device() == home ? gradient : gradient.to(home);
  // Of what was computed before the tensor was converted. Any other dtype is an operation's mistake, found later.
  const bool earlier = here.dtype() != dtype && (earlier_dtypes >> static_cast<int>(here.dtype()) & 1);
  return earlier ? here.to(dtype) : here;
}

SparseGradient LeafNode::brought_home(SparseGradient rows) const {
  if (!rows.defined()) return rows;
  rows.values = brought_home(rows.values);
  rows.indices = rows.indices.to(stream->device);
  return rows;
}

void LeafNode::accumulate(Tensor gradient) {
  LOCKSTEP_CHECK(gradient.shape() == shape && gradient.dtype() == dtype, "[backward] expected an operation that gives ",
                 owner_ ? owner_->describe() : "a leaf", " a gradient of ", dtype, shape, ", got ",
                 gradient.describe());
  {
    std::lock_guard lock(mutex);
    if (sparse.defined()) {
      detail::keep_for_current_stream(sparse);
      grad = std::exchange(sparse, {}).to_dense();
    }
    if (grad.defined()) {
      // Differentiable gradients must not be written over; others are, which keeps views of slabs in place.
      if (GradMode::enabled())
        grad = grad + gradient;
      else
        grad.add_(gradient);
    } else if (gradient.memory_format() != format) {
      grad = gradient.to(format);
    } else if (GradMode::enabled() || !gradient.contiguous_layout(format) || !gradient.sole_owner()) {
      grad = gradient.clone();  // somebody else sees these elements
    } else {
      grad = std::move(gradient);
    }
  }
  run_post_accumulate_hooks();
}

void LeafNode::accumulate_rows(SparseGradient rows) {
  {
    std::lock_guard lock(mutex);
    if (grad.defined()) {
      detail::add_rows(grad, rows.indices, rows.values);
    } else if (sparse.defined()) {
      detail::keep_for_current_stream(sparse);
      sparse = detail::join_rows(std::array{sparse, rows});
    } else {
      sparse = std::move(rows);
    }
  }
  run_post_accumulate_hooks();
}

MirrorNode::MirrorNode(Ref<Node> leaf) {
  kind_ = Kind::mirror;
  edges()[0] = {std::move(leaf), 0};
}

void MirrorNode::backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
  grad_inputs[0] = grad_outputs[0].to(edges()[0].node->stream->device);
}

std::uint64_t next_training_call() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep
