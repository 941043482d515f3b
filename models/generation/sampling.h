// Which token comes next: from logits to one number, and how probable it was.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

// In which order the steps of SamplingOptions are taken. The temperature changes what top_p and min_p let through, so
// the two orders are two distributions.
enum class SamplingOrder : std::uint8_t {
  temperature_first,  // logit_bias, penalties, temperature, top_k, top_p, min_p: as transformers and vLLM do
  temperature_last,   // logit_bias, penalties, top_k, top_p, min_p, temperature: as llama.cpp does
};

struct LogitBias {
  std::int64_t token;
  double bias;  // added to the token's logit
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
  // As OpenAI defines them: subtracted from the logits of tokens that were drawn before, the prompt's not counted. Once
  // each, and as often as the token was drawn. Below 0 they make what is there more probable. 0: none.
  double presence_penalty = 0;
  double frequency_penalty = 0;
  // Before all else. A token that stands here twice gets both.
  std::vector<LogitBias> logit_bias = {};
  SamplingOrder order = SamplingOrder::temperature_first;
  // Of the draw, which depends on it and on the token's position in its sequence alone: not on neighbours in a batch,
  // on when it was computed, or on draws before.
  std::uint64_t seed = 0;
};

// InvalidArgument for a value outside of its range: temperature below 0, top_k below 0, top_p outside (0, 1], min_p
// outside [0, 1], repetition_penalty not above 0, penalties and biases beyond what a float holds, tokens of logit_bias
// that are none of `vocabulary`, or any that is not finite.
LOCKSTEP_API void check_sampling(const SamplingOptions& options,
                                 std::int64_t vocabulary = std::numeric_limits<std::int64_t>::max());

// The number of a token, drawn with these logits for the place behind `sequence`, whose first `prompt` tokens were not
// drawn. Computed in double precision. Logits that are -inf are never drawn; InvalidArgument for no logits, for NaN,
// +inf and where all are -inf, for a prompt longer than the sequence, and what check_sampling refuses.
LOCKSTEP_API std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> sequence,
                                 const SamplingOptions& options, std::size_t prompt = 0);

struct Logprob {
  std::int64_t token = 0;
  double logprob = 0;  // natural logarithm of its probability
  bool operator==(const Logprob&) const = default;
};
struct TokenLogprobs {
  double logprob = 0;        // of the token that was drawn
  std::vector<Logprob> top;  // the most probable tokens, in order; of equal ones the lower number first
  bool operator==(const TokenLogprobs&) const = default;
};

// How probable the model held `token`, and the `count` tokens that it held most probable: the logarithm of the softmax
// of its logits, in double precision. Biases, penalties, temperature and what follows it do not count: numbers of
// different requests can be compared, and none is -inf because of top_k. Tokens whose logits are -inf are left out.
// InvalidArgument for logits that sample() refuses, a token that has none, and a count below 0 or above theirs.
LOCKSTEP_API TokenLogprobs logprobs(std::span<const float> logits, std::int64_t token, std::int64_t count);

}  // namespace lockstep
