// What the parameters of a new model begin with.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep {

enum class FirstWeights : std::uint8_t {
  random,  // normal numbers, in DefaultDType, as the published models began
  absent,  // no elements yet: load_checkpoint brings them, which then are never in memory twice
};

namespace detail {

// Sizes are whole; with a shard the parameter is that part of them. A weight of normal numbers with this deviation, or
// without elements.
Parameter first_weight(const Shape& shape, FirstWeights first, double deviation,
                       const std::optional<Shard>& shard = {});
Parameter first_zeros(const Shape& shape, FirstWeights first, const std::optional<Shard>& shard = {});
// The shard is of the weight; where it divides the outputs, the bias is divided alike.
Linear first_linear(std::int64_t inputs, std::int64_t outputs, bool bias, FirstWeights first, double deviation,
                    const std::optional<Shard>& shard = {});
Embedding first_embedding(std::int64_t rows, std::int64_t size, FirstWeights first, double deviation,
                          const std::optional<Shard>& shard = {});

}  // namespace detail
}  // namespace lockstep
