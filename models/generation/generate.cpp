#include "lockstep/models/generation/generate.h"

#include <algorithm>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {

std::vector<Generated> generate(const LanguageModel& model, const std::vector<std::vector<std::int64_t>>& prompts,
                                const GenerateOptions& options, const OnToken& on_token) {
  if (prompts.empty()) return {};
  ContinuousBatchOptions limits;
  limits.max_sequences = std::min<std::int64_t>(static_cast<std::int64_t>(prompts.size()), limits.max_sequences);
  // Pages for those that are computed side by side, if they were the longest.
  const std::int64_t positions = model.shape().positions, page = limits.cache.page_size;
  std::vector<std::int64_t> pages;
  for (const auto& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    // Where the model has no last position: more than any cache has pages for, and sums of it are numbers.
    constexpr std::int64_t kEndless = std::int64_t{1} << 40;
    const std::int64_t room = std::max<std::int64_t>((positions > 0 ? positions : kEndless) - length, 0);
    const std::int64_t most = length + std::clamp<std::int64_t>(options.max_new_tokens, 0, room);
    pages.push_back(most / page + 1);
  }
  std::sort(pages.rbegin(), pages.rend());
  for (std::size_t i = 0; i < static_cast<std::size_t>(limits.max_sequences); ++i) limits.cache.pages += pages[i];

  ContinuousBatch batch(model, limits);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerateOptions own = options;
    own.sampling.seed += i;
    batch.add(prompts[i], std::move(own));  // requests are numbered from 0
  }
  std::vector<Generated> results(prompts.size());
  while (!batch.idle()) {
    for (GenerationEvent& event : batch.step()) {
      if (event.error) std::rethrow_exception(event.error);
      const auto i = static_cast<std::size_t>(event.request);
      results[i].tokens.push_back(event.token);
      if (event.logprobs) results[i].logprobs.push_back(std::move(*event.logprobs));
      if (event.finish) results[i].finish = *event.finish;
      if (!on_token || on_token(i, event.token) || event.finish) continue;
      batch.cancel(event.request);
      results[i].finish = FinishReason::stop;
    }
  }
  return results;
}

Generated generate(const LanguageModel& model, const std::vector<std::int64_t>& prompt, const GenerateOptions& options,
                   const OnToken& on_token) {
  return generate(model, std::vector<std::vector<std::int64_t>>{prompt}, options, on_token).front();
}

}  // namespace lockstep
