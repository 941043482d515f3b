#include "lockstep/tensor/autograd/record.h"

#include "lockstep/runtime/edge.h"

namespace lockstep::detail {

void attach(Node& node, const Tensor& output, std::uint32_t index) {
  if (node.stream == nullptr) {
    LOCKSTEP_EDGE(node.stream = &current_stream(output.device()).body());
    ThreadContext& context = thread_context();
    node.sequence = ++context.sequence;
    node.numbering = context.numbering;
  }
  output.set_edge({Ref<Node>(&node), index});
}

}  // namespace lockstep::detail
