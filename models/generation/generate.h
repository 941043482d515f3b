// Text of one prompt, or of several, and nothing more: no threads, no queue.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/models/generation/continuous_batch.h"

namespace lockstep {

struct Generated {
  std::vector<std::int64_t> tokens;  // without the prompt; with the stop token, where one ended it
  FinishReason finish = FinishReason::length;
  std::vector<TokenLogprobs> logprobs = {};  // of each token, where they were asked for
};

// Called with each token of prompt number `prompt`, between two calls of the model. False ends that one: its finish is
// `stop`.
using OnToken = std::function<bool(std::size_t prompt, std::int64_t token)>;

// The tokens that follow the prompt. Waits for the device. Throws what ContinuousBatch::add and the model throw.
LOCKSTEP_API Generated generate(const LanguageModel& model, const std::vector<std::int64_t>& prompt,
                                const GenerateOptions& options = {}, const OnToken& on_token = {});
// Of several prompts at once, in their order: each gets what it would alone, but for the last bits of sums. With a
// temperature, prompt i draws with seed + i.
LOCKSTEP_API std::vector<Generated> generate(const LanguageModel& model,
                                             const std::vector<std::vector<std::int64_t>>& prompts,
                                             const GenerateOptions& options = {}, const OnToken& on_token = {});

}  // namespace lockstep
