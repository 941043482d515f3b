// What the parameters of a new model begin with.
#pragma once

#include <cstdint>

#include "lockstep/tensor/nn/linear.h"

namespace lockstep {

enum class FirstWeights : std::uint8_t {
  random,  // normal numbers, in DefaultDType, as the published models began
  absent,  // no elements yet: load_checkpoint brings them, which then are never in memory twice
};

namespace detail {

// A weight of normal numbers with this deviation, or without elements.
Parameter first_weight(const Shape& shape, FirstWeights first, double deviation);
Parameter first_zeros(const Shape& shape, FirstWeights first);
Linear first_linear(std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first, double deviation);
Embedding first_embedding(std::int64_t rows, std::int64_t size, FirstWeights first, double deviation);

}  // namespace detail
}  // namespace lockstep
