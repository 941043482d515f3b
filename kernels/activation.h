// The functions that a matrix product can apply to its result before storing it.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Activation : std::uint8_t {
  none,
  relu,
  gelu,       // x * Phi(x), exactly
  gelu_tanh,  // its approximation by tanh
};

}  // namespace lockstep
