// Recording an operation, once its result y is computed without a graph.
//
//   struct ExpNode final : NodeOf<1> {
//     const char* name() const override { return "exp"; }
//     void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
//       grad_inputs[0] = grad_outputs[0] * y.get(*this);
//     }
//     Saved y{*this};
//   };
//   …
//   if (auto* node = record<ExpNode>(y, x)) node->y.save_output(y);
//   return y;
//
// A whole one is in docs/embedding.md, "Extending it".
#pragma once

#include <mutex>
#include <utility>

#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/ops/sparse_gradient.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A tensor that a node keeps for backward, or computes again then (checkpoint.h). Reading it after an in-place write,
// or after it was freed, is an Error. It belongs to its node, which frees it after backward: a member
// `Saved x{*this};`, or, where their number is known at run time, an element of a std::deque<Saved> in the node
// (`saved.emplace_back(*this)`), which only grows.
class LOCKSTEP_API Saved {
 public:
  explicit Saved(Node& node) noexcept : previous_(std::exchange(node.saved_, this)) {}
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  void save(const Tensor& input);  // an input of the operation, or any tensor outside its result
  // An output of the operation itself: kept without its edge (which would be a cycle).
  void save_output(const Tensor& output, std::uint32_t index = 0);
  // `self` is the node that saved it.
  Tensor get(Node& self) const;

 private:
  friend class Node;
  void release();
  void leave_out(const Tensor& tensor);
  Tensor computed_again(Node& self) const;

  enum class State : std::uint8_t { empty, input, output, freed };
  Tensor tensor_;              // with a frame: without elements
  std::uint64_t version_ = 0;  // with a frame: the tensor's number in it
  Ref<detail::CheckpointFrame> frame_;
  Saved* const previous_;  // of the node's
  std::uint32_t index_ = 0;
  State state_ = State::empty;
};

class LeafNode;
class ParameterBody;

namespace detail {
LOCKSTEP_API Ref<Node> make_leaf(const Tensor& tensor);
inline bool wants_gradient(const Tensor& tensor) { return tensor.requires_grad(); }
// Makes `node` the origin of `output`, as its output `index`.
LOCKSTEP_API void attach(Node& node, const Tensor& output, std::uint32_t index);
// Calls the hooks of the outputs that have a gradient; each must leave one like it.
void run_gradient_hooks(const Node& node, std::span<Tensor> gradients);
}  // namespace detail

// When grad mode is on and an input wants a gradient: makes a node of type N with edges to the inputs (undefined ones
// are fine), makes it the origin of `output`, and returns it for saving. Else null.
template <class N, class... Inputs>
N* record(const Tensor& output, const Inputs&... inputs) {
  if (!GradMode::enabled() || !(detail::wants_gradient(inputs) || ...)) return nullptr;
  N* node = new N;
  Edge* edge = node->edges().data();
  ((*edge++ = inputs.defined() ? inputs.edge() : Edge{}), ...);
  detail::attach(*node, output, 0);
  return node;
}
// The same for a list of inputs; N derives from NodeOfMany.
template <class N>
N* record_many(const Tensor& output, std::span<const Tensor> inputs) {
  bool wanted = false;
  for (const Tensor& input : inputs) wanted |= detail::wants_gradient(input);
  if (!GradMode::enabled() || !wanted) return nullptr;
  N* node = new N;
  node->set_inputs(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined()) node->edges()[i] = inputs[i].edge();
  detail::attach(*node, output, 0);
  return node;
}

// An operation that takes rows of its only input, on one device. In a plain backward a leaf or mirror gets those rows
// alone: then the engine calls rows() in place of backward().
class RowsNode : public NodeOf<1> {
 public:
  virtual SparseGradient rows(const Tensor& grad_output) = 0;

 protected:
  RowsNode() { gives_rows_ = true; }
};

// The end of the line for a leaf: holds its gradient and its hooks. The leaf tensor and the graph share it.
class LOCKSTEP_API LeafNode final : public NodeOf<0> {
 public:
  LeafNode() { kind_ = Kind::leaf; }
  const char* name() const override { return "leaf"; }
  // Adds the gradient to grad (the engine has run the hooks).
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;
  void accumulate(Tensor gradient);
  void accumulate_rows(SparseGradient rows);  // whose elements nobody else sees
  void run_after_accumulate();
  // The tensor has other memory from now on: gradients that are still on their way are brought there.
  void move_to(Device device, DType to_dtype);
  // `gradient`, or a copy where the tensor is now, as it is now. Differentiable.
  Tensor brought_home(const Tensor& gradient) const;
  SparseGradient brought_home(SparseGradient rows) const;

  Tensor grad;
  SparseGradient sparse;  // instead of grad, while there were rows alone
  Shape shape;
  DType dtype = DType::f32;
  std::uint32_t earlier_dtypes = 0;    // a bit for each that the tensor once had
  ParameterBody* parameter = nullptr;  // the body whose home slot this is, if any
  struct AfterAccumulate {
    std::uint64_t id;
    std::function<void()> call;
  };
  std::vector<AfterAccumulate> after_accumulate;  // once per backward that reached the leaf
  std::mutex mutex;                               // several threads may add at once
};

}  // namespace lockstep
