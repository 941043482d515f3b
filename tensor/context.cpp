#include "lockstep/tensor/context.h"

#include "lockstep/runtime/stream/capture.h"

namespace lockstep {

ThreadContext& thread_context() {
  static thread_local ThreadContext context;
  return context;
}

void manual_seed(std::uint64_t seed) {
  if (detail::current_capture) [[unlikely]]
    detail::current_capture->refuse("manual_seed", "a seed, which replays would not set; set it before them");
  ThreadContext& context = thread_context();
  context.random_seed = seed;
  context.random_stream = 0;
  context.random_counter = 0;
}

}  // namespace lockstep
