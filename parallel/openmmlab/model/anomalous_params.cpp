#include "lockstep/parallel/openmmlab/model/anomalous_params.h"

#include <unordered_set>
#include <utility>

#include "lockstep/runtime/log.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep {

std::vector<NamedParameter> detect_anomalous_params(const Tensor& loss, const ModuleBase& model) {
  std::unordered_set<const Node*> seen;
  std::unordered_set<const LeafOwner*> reached;
  std::vector<const Node*> stack;  // graphs are deep
  const auto visit = [&](const Edge& edge) {
    if (const Node* node = edge.node.get(); node != nullptr && seen.insert(node).second) stack.push_back(node);
  };
  visit(loss.edge());
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (node->kind() == Node::Kind::leaf) reached.insert(static_cast<const LeafNode*>(node)->owner());
    if (node->kind() == Node::Kind::mirror) reached.insert(static_cast<const MirrorNode*>(node)->owner());
    for (const Edge& edge : node->edges()) visit(edge);
  }
  std::vector<NamedParameter> anomalous;
  for (NamedParameter& named : model.named_parameters()) {
    if (!named.parameter.requires_grad() || reached.contains(named.parameter.body())) continue;
    log(LogLevel::error, cat("[detect_anomalous_params] expected every parameter in the graph of the loss, but '",
                             named.name, "' with shape ", named.parameter.shape(), " is not"));
    anomalous.push_back(std::move(named));
  }
  return anomalous;
}

}  // namespace lockstep
