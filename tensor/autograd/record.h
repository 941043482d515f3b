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
// A whole one is in docs/extending.md.
#pragma once

#include <span>

#include "lockstep/tensor/autograd/saved.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

namespace detail {
inline bool wants_gradient(const Tensor& tensor) { return tensor.requires_grad(); }
// Makes `node` the origin of `output`, as its output `index`.
LOCKSTEP_API void attach(Node& node, const Tensor& output, std::uint32_t index);
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

}  // namespace lockstep
