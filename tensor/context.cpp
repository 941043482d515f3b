#include "lockstep/tensor/context.h"

namespace lockstep {

ThreadContext& thread_context() {
  static thread_local ThreadContext context;
  return context;
}

void manual_seed(std::uint64_t seed) {
  ThreadContext& context = thread_context();
  context.random_seed = seed;
  context.random_stream = 0;
  context.random_counter = 0;
}

}  // namespace lockstep
