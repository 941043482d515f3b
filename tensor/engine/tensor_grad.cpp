// The members of Tensor that concern gradients: they need to know leaves and the engine.
#include "lockstep/runtime/check_function.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/engine/gradient_sink.h"
#include "lockstep/tensor/ops/support.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

LeafNode* Tensor::leaf() const {
  // Only leaves end the graph: every other node has inputs.
  return impl().edge.node && impl_->edge.node->is_leaf() ? static_cast<LeafNode*>(impl_->edge.node.get()) : nullptr;
}

void Tensor::set_data(const Tensor& other) const {
  TensorImpl& mine = impl();
  const TensorImpl& theirs = other.impl();
  mine.storage = theirs.storage;
  mine.offset = theirs.offset;
  mine.count = theirs.count;
  mine.shape = theirs.shape;
  mine.strides = theirs.strides;
  mine.dtype = theirs.dtype;
  mine.contiguous = theirs.contiguous;
  if (LeafNode* node = leaf()) {
    node->shape = mine.shape;
    node->format = memory_format();
    node->move_to(device(), mine.dtype);
  }
}

Tensor& Tensor::set_requires_grad(bool wanted) {
  if (wanted == requires_grad()) return *this;
  LOCKSTEP_CHECK(is_leaf(), "[set_requires_grad] expected a leaf, got the result of '", impl_->edge.node->name(), "', ",
                 describe(), "; detach() it first");
  if (!wanted) {
    set_edge({});
    return *this;
  }
  LOCKSTEP_CHECK(is_floating(dtype()), "[set_requires_grad] expected a floating dtype, got ", describe());
  set_edge({detail::make_leaf(*this), 0});
  return *this;
}

Tensor Tensor::grad() const {
  LeafNode* node = defined() ? leaf() : nullptr;
  if (!node) return {};
  std::lock_guard lock(node->mutex);
  LOCKSTEP_CHECK(!node->sparse.defined(), "[grad] expected a dense gradient of ",
                 node->owner() ? node->owner()->describe() : describe(), ", got ", node->sparse, "; use sparse_grad()");
  // It may have been made on another stream, and the next zero_grad() lets go of it while it may still be read.
  if (const Tensor& kept = node->grad; kept.defined())
    LOCKSTEP_EDGE(kept.storage()->record_use(current_stream(kept.device())));
  return node->grad;
}

SparseGradient Tensor::sparse_grad() const {
  LeafNode* node = defined() ? leaf() : nullptr;
  if (!node) return {};
  std::lock_guard lock(node->mutex);
  // As grad().
  for (const Tensor& part : {node->sparse.indices, node->sparse.values})
    if (part.defined()) LOCKSTEP_EDGE(part.storage()->record_use(current_stream(part.device())));
  return node->sparse;
}

void Tensor::set_grad(const Tensor& grad) {
  LeafNode* node = leaf();
  if (!node) {
    LOCKSTEP_CHECK(!grad.defined(), "[set_grad] expected a leaf that requires a gradient, got ", describe());
    return;
  }
  LOCKSTEP_CHECK(!grad.defined() || (grad.shape() == shape() && grad.dtype() == dtype() && grad.device() == device()),
                 "[set_grad] expected a gradient like its tensor, ", describe(), ", got ", grad.describe());
  const Tensor kept = grad.defined() ? detail::in_format(grad, node->format) : grad;
  std::lock_guard lock(node->mutex);
  node->grad = kept;
  node->sparse = {};
}

void Tensor::set_sparse_grad(const SparseGradient& grad) {
  if (!grad.defined()) return set_grad({});
  LeafNode* node = leaf();
  LOCKSTEP_CHECK(node, "[set_sparse_grad] expected a leaf that requires a gradient, got ", describe());
  Shape rows = shape();
  bool fits = rank() > 0 && grad.indices.defined() && grad.indices.rank() == 1 && grad.indices.dtype() == DType::i64 &&
              grad.indices.device() == device();
  if (fits) rows[0] = grad.indices.count();
  fits = fits && grad.shape == shape() && grad.values.shape() == rows && grad.values.dtype() == dtype() &&
         grad.values.device() == device();
  LOCKSTEP_CHECK(fits, "[set_sparse_grad] expected i64 indices and as many rows of ", describe(), ", got indices ",
                 grad.indices, " and values ", grad.values, " for the shape ", grad.shape);
  std::lock_guard lock(node->mutex);
  node->grad = {};
  node->sparse = grad;
}

namespace {
std::uint64_t next_hook_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}
}  // namespace

std::uint64_t Tensor::register_hook(TensorHook hook) const {
  detail::check_function("register_hook", hook);
  LOCKSTEP_CHECK(requires_grad(), "[register_hook] expected a tensor that requires a gradient, got ", describe());
  Node& node = *impl_->edge.node;
  if (!node.hooks) node.hooks = std::make_unique<std::vector<Node::Hook>>();
  const std::uint64_t id = next_hook_id();
  node.hooks->push_back({id, impl_->edge.index, std::move(hook)});
  return id;
}

std::uint64_t Tensor::register_post_accumulate_hook(std::function<void()> hook) const {
  detail::check_function("register_post_accumulate_hook", hook);
  LeafNode* leaf = this->leaf();
  LOCKSTEP_CHECK(leaf, "[register_post_accumulate_hook] expected a leaf that requires a gradient, got ", describe());
  const std::uint64_t id = next_hook_id();
  leaf->post_accumulate_hooks.push_back({id, std::move(hook)});
  return id;
}

void Tensor::remove_hook(std::uint64_t id) const {
  if (!requires_grad()) return;
  if (impl_->edge.node->hooks)
    std::erase_if(*impl_->edge.node->hooks, [&](const Node::Hook& hook) { return hook.id == id; });
  if (LeafNode* leaf = this->leaf())
    std::erase_if(leaf->post_accumulate_hooks, [&](const LeafNode::PostAccumulateHook& hook) { return hook.id == id; });
}

void Tensor::backward(const Tensor& gradient, BackwardOptions options) const {
  lockstep::backward(std::span(this, 1), std::span(&gradient, gradient.defined() ? 1 : 0), options);
}

}  // namespace lockstep
