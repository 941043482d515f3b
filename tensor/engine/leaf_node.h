// The ends of a graph: leaves, which hold a gradient, and mirrors, which stand for a leaf on another device.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "lockstep/tensor/ops/sparse_gradient.h"

namespace lockstep {

class LeafOwner;

// Holds a leaf's gradient and its hooks. The leaf tensor and the graph share it.
class LOCKSTEP_API LeafNode final : public NodeOf<0> {
 public:
  LeafNode() { kind_ = Kind::leaf; }
  const char* name() const override { return "leaf"; }
  // Adds the gradient to grad (the engine has run the hooks).
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;
  void accumulate(Tensor gradient);
  void accumulate_rows(SparseGradient rows);  // whose elements nobody else sees
  void run_post_accumulate_hooks();
  // The tensor has other memory from now on: gradients that are still on their way are brought there.
  void move_to(Device device, DType to_dtype);
  // `gradient`, or a copy where the tensor is now, as it is now. Differentiable.
  Tensor brought_home(const Tensor& gradient) const;
  SparseGradient brought_home(SparseGradient rows) const;

  LeafOwner* owner() const { return owner_; }  // null: nobody's
  void set_owner(LeafOwner* owner) {
    owner_ = owner;
    owned_ = owner != nullptr;
  }

  Tensor grad;
  SparseGradient sparse;  // instead of grad, while there were rows alone
  Shape shape;
  MemoryFormat format = MemoryFormat::contiguous;  // in which grad is kept
  DType dtype = DType::f32;
  std::uint32_t earlier_dtypes = 0;  // a bit for each that the tensor once had
  struct PostAccumulateHook {
    std::uint64_t id;
    std::function<void()> function;
  };
  std::vector<PostAccumulateHook> post_accumulate_hooks;  // once per backward that reached the leaf
  std::mutex mutex;                                       // several threads may add at once

 private:
  LeafOwner* owner_ = nullptr;
};

// Stands for a leaf on another device, where the leaf's owner has a copy of it. The only edge leads to the leaf. While
// it has an owner, a plain backward ends here, and the owner's sink takes the gradient (gradient_sink.h). Else, and
// always in grad() and under create_graph, it is an ordinary differentiable copy to the leaf's device.
class LOCKSTEP_API MirrorNode : public NodeOf<1> {
 public:
  const char* name() const override { return "mirror"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;

  virtual LeafOwner* owner() const = 0;  // null when it is gone or has no copy here any more
  virtual int replica() const = 0;       // place in the order of sums

 protected:
  explicit MirrorNode(Ref<Node> leaf);
};

namespace detail {
LOCKSTEP_API Ref<Node> make_leaf(const Tensor& tensor);
// Calls the hooks of the outputs that have a gradient; each must leave one like it.
void run_gradient_hooks(const Node& node, std::span<Tensor> gradients);
}  // namespace detail

}  // namespace lockstep
