// What the replicas of one parallel call get from backwards of their own for parameters that are at home elsewhere.
// Each replica's is kept apart until all have returned and is added to the parameters then, in replica order: no bit
// depends on who was first.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/autograd/record.h"

namespace lockstep {

// Of one replica: its thread's context names it (ThreadContext::kept_gradients), the engine fills it.
class LOCKSTEP_API KeptGradients {
 public:
  struct Gradient {
    Ref<Node> leaf;       // of the parameter, which may be gone at the end
    Stream* stream;       // what follows is ordered by it, and on its device
    bool of_slot;         // of the parameter's slot there; else it came home by an ordinary edge
    bool differentiable;  // of a backward with create_graph
    Tensor matrix;        // either this
    SparseGradient rows;  // or this
  };

  explicit KeptGradients(Device device) : device_(device) {}

  // Whether a gradient that came to the leaf by an ordinary edge has to wait: the parameter's home is not here.
  bool wants(const Node& leaf) const;
  // Those of one backward, at its end: added to what earlier ones have left.
  void keep(std::vector<Gradient> gradients);

  // Adds everything to the parameters' grads, on the current streams. Throws Error when another call trains one of
  // the parameters.
  static void add_all(std::span<KeptGradients* const> replicas);

 private:
  const Device device_;
  std::mutex mutex_;
  std::vector<Gradient> gradients_;
};

}  // namespace lockstep
