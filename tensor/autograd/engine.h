// Running graphs backwards. `backward` and `grad` themselves are declared in tensor.h.
#pragma once

#include <functional>

#include "lockstep/runtime/api.h"

namespace lockstep {

// Runs `callback` in the calling thread at the end of the backward in progress, after all gradients are in place.
// Throws Error when this thread runs none. Callbacks may queue further ones.
LOCKSTEP_API void queue_backward_callback(std::function<void()> callback);

}  // namespace lockstep
