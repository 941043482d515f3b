// The graph that operations record for backward: nodes point at the nodes that made their inputs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/kernels/layout.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/ref.h"

namespace lockstep {

class Tensor;
class Node;
class Saved;

using TensorHook = std::function<void(Tensor& gradient)>;  // may replace the gradient

// Where a gradient flows to: output `index` of the operation that `node` differentiates. Null where none is wanted.
struct Edge {
  Ref<Node> node;
  std::uint32_t index = 0;
};

// Differentiates one operation. Derive from NodeOf<inputs>, override backward, and hold each tensor that backward needs
// as a member `Saved x{*this};` (autograd/record.h): it is freed after the backward by itself. Other members (sizes, a
// function) live as long as the node, so they hold no tensors.
class LOCKSTEP_API Node : public RefCounted {
 public:
  virtual ~Node();

  virtual const char* name() const = 0;
  // Computes grad_inputs, the gradients of the operation's inputs, from grad_outputs, those of its outputs (undefined
  // where none arrived; at least one did). Only inputs with needs(i) matter; leave the others, and those whose gradient
  // is zero, undefined. Runs with grad mode on when the gradients must be differentiable themselves: build them from
  // differentiable operations.
  virtual void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) = 0;
  // Frees the elements of every Saved of this node. The engine calls it after backward unless the graph is retained.
  void release_saved();

  bool needs(int input) const { return edges_[input].node.get() != nullptr; }
  std::span<Edge> edges() { return {edges_, edge_count_}; }
  std::span<const Edge> edges() const { return {edges_, edge_count_}; }

  // Leaves and mirrors (copies of a leaf on other devices) are where a backward ends.
  enum class Kind : std::uint8_t { operation, leaf, mirror };
  Kind kind() const { return kind_; }
  bool is_leaf() const { return kind_ == Kind::leaf; }
  bool gives_rows() const { return gives_rows_; }  // a RowsNode
  bool is_owned() const { return owned_; }         // a leaf with an owner, who may give it other memory before backward

  std::uint32_t output_count = 1;
  std::uint32_t numbering = 0;           // ThreadContext's when it was made
  std::uint64_t sequence = 0;            // creation number in its thread: later nodes run first
  detail::StreamBody* stream = nullptr;  // of the forward operation; backward runs there too

  struct Hook {
    std::uint64_t id;
    std::uint32_t output;
    TensorHook function;
  };
  std::unique_ptr<std::vector<Hook>> hooks;

  // Frees the node and what hangs on it alone, without recursion: graphs are deep.
  static void destroy(Node* node) noexcept;

 protected:
  Node(Edge* edges, std::uint32_t edge_count) : edges_(edges), edge_count_(edge_count) {}
  Edge* edges_;
  std::uint32_t edge_count_;
  Kind kind_ = Kind::operation;
  bool gives_rows_ = false;
  bool owned_ = false;

 private:
  friend class Saved;
  Saved* saved_ = nullptr;  // the last one; each knows the one before it
};

template <std::size_t Inputs>
class NodeOf : public Node {
 protected:
  NodeOf() : Node(nullptr, Inputs) { edges_ = inputs_.data(); }

 private:
  std::array<Edge, Inputs> inputs_;
};

// For operations with any number of inputs.
class NodeOfMany : public Node {
 public:
  void set_inputs(std::size_t count) {
    inputs_.resize(count);
    edges_ = inputs_.data();
    edge_count_ = static_cast<std::uint32_t>(count);
  }

 protected:
  NodeOfMany() : Node(nullptr, 0) {}

 private:
  std::vector<Edge> inputs_;
};

}  // namespace lockstep
