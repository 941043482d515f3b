// What a backward asks of those who own leaves: the parameters of modules, whose gradients are summed over replicas.
// tensor/nn implements both classes. The engine knows nothing else of modules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/engine/leaf_node.h"

namespace lockstep {

// The gradient of an owned leaf, at the leaf or at one of its mirrors.
struct OwnedGradient {
  Ref<LeafNode> leaf;          // whose owner may be gone when a later call adds it
  detail::StreamBody* stream;  // what follows is ordered by it, and on its device
  bool replicated;      // of one replica of several, to be summed with the others; else it came by an ordinary edge
  bool differentiable;  // of a backward with create_graph
  Tensor matrix;        // either this
  SparseGradient rows;  // or this
  bool nested = false;  // another backward over the leaf is not over: this one runs in a hook of it
};

// A gradient of one replica of several that a backward may bring: of a node that it will run, on that stream. It is
// whole after the operation that was the first in the forward: later operations come first, each on its device.
struct ExpectedGradient {
  LeafNode* leaf;
  detail::StreamBody* stream;
  std::uint64_t first_use;  // the operation's number
};

// Takes the gradients of owned leaves in place of the leaves' grad. Must outlive the backward.
class LOCKSTEP_API GradientSink {
 public:
  virtual ~GradientSink() = default;
  // A sink in this one's place for one backward that runs in several threads; null: this one. Called before the first
  // node runs, in the thread that called the backward.
  virtual std::shared_ptr<GradientSink> for_one_backward([[maybe_unused]] std::span<const ExpectedGradient> expected) {
    return nullptr;
  }
  // Whether it also takes what comes to `leaf` by an ordinary edge.
  virtual bool wants(const LeafNode& leaf) const = 0;
  // A gradient has arrived; its stream is the current one. Several threads may call at once. What it leaves in
  // `gradient` is kept for finish().
  virtual void arrive(OwnedGradient& gradient) = 0;
  // All that arrived in one backward, after its last node, in the thread that called it. Not called when it failed.
  virtual void finish(std::vector<OwnedGradient> gradients) = 0;
  // Of a sink for one backward, last, in that thread too: when it has finished or failed.
  virtual void end() noexcept {}
};

// Owns a leaf. It may give the leaf other memory, and have mirrors of it on other devices.
class LOCKSTEP_API LeafOwner {
 public:
  virtual std::string describe() const = 0;  // "parameter 'conv.weight'", for messages
  // Keeps the owner while a backward runs; null when it is being destroyed. Throws InvalidArgument when the leaf must
  // not be trained.
  virtual std::shared_ptr<LeafOwner> hold() = 0;
  // One call at a time trains a leaf: Error when another one does. Of several backwards of a call that are under way at
  // once, one in a hook of the other, false for all but the first. Each begin that did not throw has one end.
  virtual bool begin_backward(std::uint64_t call, const void* backward) = 0;
  virtual void end_backward(const void* backward) = 0;
  // Of a backward that reaches mirrors, outside of replicas. All owners in one graph have one sink.
  virtual GradientSink& sink() = 0;

 protected:
  ~LeafOwner() = default;
};

// A number for a training call that has none yet.
LOCKSTEP_API std::uint64_t next_training_call();

}  // namespace lockstep
