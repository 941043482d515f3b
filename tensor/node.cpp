#include "lockstep/tensor/node.h"

#include <utility>

namespace lockstep {

Node::~Node() = default;

void Node::destroy(Node* node) noexcept {
  // Freeing a node drops its edges and saved tensors, which may free further nodes: they line up here. The list runs
  // through their numbers, which nobody asks for any more: memory may have run out, and this must not fail.
  static_assert(sizeof(node->sequence) >= sizeof(std::uintptr_t));
  constinit static thread_local Node* waiting = nullptr;
  constinit static thread_local bool busy = false;
  node->sequence = reinterpret_cast<std::uintptr_t>(waiting);
  waiting = node;
  if (std::exchange(busy, true)) return;
  while (Node* next = waiting) {
    waiting = reinterpret_cast<Node*>(static_cast<std::uintptr_t>(next->sequence));
    delete next;
  }
  busy = false;
}

}  // namespace lockstep
