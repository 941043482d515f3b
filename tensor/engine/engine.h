// Running graphs backwards. `backward` and `grad` themselves are declared in tensor.h.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/runtime/api.h"

namespace lockstep {

class Node;

// Runs `callback` in the calling thread at the end of the backward in progress, after all gradients are in place.
// Throws Error when this thread runs none. Callbacks may queue further ones.
LOCKSTEP_API void queue_backward_callback(std::function<void()> callback);

// For what hooks do, of the backward that this thread runs or works for (Error when it does neither): a number that no
// other backward has, and its graph, node by node, those next to its outputs first, until `visit` returns false.
LOCKSTEP_API std::uint64_t backward_number();
LOCKSTEP_API void visit_backward(const std::function<bool(const Node&)>& visit);

}  // namespace lockstep
