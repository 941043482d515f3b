#include "lockstep/parallel/tensor_parallel/same_draws.h"

#include <array>
#include <cstring>

namespace lockstep {

SameDraws::SameDraws(Communicator* ranks) {
  ThreadContext& context = thread_context();
  seed_ = context.random_seed, stream_ = context.random_stream, counter_ = begin_ = context.random_counter;
  if (!ranks || ranks->size() == 1) return;
  std::array<std::uint64_t, 3> numbers{seed_, stream_, counter_};
  const std::string said = ranks->broadcast_bytes({reinterpret_cast<const char*>(numbers.data()), sizeof numbers}, 0);
  std::memcpy(numbers.data(), said.data(), sizeof numbers);
  context.random_seed = numbers[0];
  context.random_stream = numbers[1];
  context.random_counter = begin_ = numbers[2];
}

SameDraws::~SameDraws() {
  ThreadContext& context = thread_context();
  context.random_seed = seed_;
  context.random_stream = stream_;
  context.random_counter = counter_ + (context.random_counter - begin_);
}

}  // namespace lockstep
