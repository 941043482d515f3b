// Memory that a graph uses and that is not its own. Private to the library.
#pragma once

#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/storage.h"

namespace lockstep::detail {

// In a capture: the graph keeps the memory, and counts each replay as a write to it if it `writes`.
void note_use(const Ref<Storage>& storage, bool writes);

}  // namespace lockstep::detail
