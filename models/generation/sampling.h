// Which token comes next: from logits to one number.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/runtime/api.h"

namespace lockstep {

// In which order the steps of SamplingOptions are taken. The temperature changes what top_p and min_p let through, so
// the two orders are two distributions.
enum class SamplingOrder : std::uint8_t {
  temperature_first,  // repetition penalty, temperature, top_k, top_p, min_p: as transformers and vLLM do
  temperature_last,   // repetition penalty, top_k, top_p, min_p, temperature: as llama.cpp does
};

struct SamplingOptions {
  // Logits are divided by it. 0: no draw, but the most probable token, of several the lowest; what follows top_k is
  // without meaning then.
  double temperature = 0;
  std::int64_t top_k = 0;  // the k largest and what is equal to the smallest of them; 0: all
  // The fewest tokens, from the most probable one on, whose probabilities reach top_p; of equal ones those with lower
  // numbers first. 1: all.
  double top_p = 1;
  double min_p = 0;  // those with at least min_p times the probability of the most probable token; 0: all
  // Logits of tokens that the sequence has, prompt included, are divided by it where positive and multiplied by it
  // where negative, once each (Keskar et al., "CTRL", 2019). 1: none.
  double repetition_penalty = 1;
  SamplingOrder order = SamplingOrder::temperature_first;
  // Of the draw, which depends on it and on the token's position in its sequence alone: not on neighbours in a batch,
  // on when it was computed, or on draws before.
  std::uint64_t seed = 0;
};

// InvalidArgument for a value outside of its range: temperature below 0, top_k below 0, top_p outside (0, 1], min_p
// outside [0, 1], repetition_penalty not above 0 or beyond what a float holds, or any that is not finite.
LOCKSTEP_API void check_sampling(const SamplingOptions& options);

// The number of a token, drawn with these logits for the place behind `sequence`. Computed in double precision. Logits
// that are -inf are never drawn; InvalidArgument for no logits, for NaN, +inf and where all are -inf.
LOCKSTEP_API std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> sequence,
                                 const SamplingOptions& options);

}  // namespace lockstep
