// a forward pre-hook sees the arguments and cannot replace them: it must return void
// a forward hook sees the results and cannot replace them: it must return void
// a backward hook sees the gradients and cannot replace them: it must return void
#include "lockstep/tensor/nn/linear.h"

using namespace lockstep;
using Seen = std::span<const Tensor>;

int main() {
  Linear layer(2, 2);
  layer.register_forward_pre_hook([](const ModuleBase&, Seen arguments) { return arguments[0]; });
  layer.register_forward_hook([](const ModuleBase&, Seen, Seen results) { return results[0]; });
  layer.register_backward_hook([](const ModuleBase&, Seen gradients) { return gradients[0]; });
}
