// Text for many at once: sequences join and leave a batch between two calls of the model.
#pragma once

#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/models/generation/kv_cache.h"
#include "lockstep/models/generation/sampling.h"

namespace lockstep {

struct GenerateOptions {
  // At most; less where the model's positions or the cache's pages are used up before.
  std::int64_t max_new_tokens = 256;
  std::vector<std::int64_t> stop_tokens;  // the sequence ends behind one of them, such as the model's end of text
  SamplingOptions sampling;
  // Also the log probability of each token, and of so many that were most probable in its place. Empty: none.
  std::optional<std::int64_t> logprobs = {};
};

enum class FinishReason : std::uint8_t {
  stop,    // a stop token, which is the last one
  length,  // as many tokens as were wanted, or as there is room for
  failed,  // an error says why; the others go on
};

struct ContinuousBatchOptions {
  KvCacheOptions cache;             // its number of pages is required
  std::int64_t max_sequences = 64;  // computed side by side; the others wait
  // In one call of the model. A longer prompt is computed in several calls, beside the next tokens of the others, whose
  // turns come first. At least max_sequences.
  std::int64_t max_tokens = 512;
};

// A token, or the end, of a request.
struct GenerationEvent {
  std::int64_t request;
  std::int64_t token;                     // -1 where it failed
  std::optional<FinishReason> finish;     // set in the last event of a request
  std::exception_ptr error;               // of one that failed
  std::optional<TokenLogprobs> logprobs;  // of the token, where they were asked for
};

struct ContinuousBatchStats {
  std::int64_t waiting = 0, running = 0;  // requests
  std::uint64_t steps = 0;                // calls of the model
  std::uint64_t computed_tokens = 0;      // by the model, those of prompts included
  std::uint64_t shared_tokens = 0;        // of prompts, which were in the cache
  std::uint64_t preempted = 0;            // sequences that lost their pages to others, and were computed again
  KvCacheStats cache;
};

// Continuous batching (Yu et al., "Orca", 2022) over a KvCache: each step computes one token of every running sequence
// and, within max_tokens, parts of the prompts of those that join. Requests join in the order of add(). When pages run
// out, the sequence that joined last gives its own back, and is computed again later; the first always goes on. Which
// tokens a request gets does not depend on its neighbours, but for the last bits of sums: kernels for several rows add
// in another order than those for one.
//
// Not thread-safe, as KvCache; Generator has a thread of its own.
class LOCKSTEP_API ContinuousBatch {
 public:
  // Borrows the model, whose weights must not change while requests are open (exchange them between two requests, then
  // call forget_prefixes). InvalidArgument for limits below 1, or that do not fit together; OutOfMemory.
  ContinuousBatch(const LanguageModel& model, const ContinuousBatchOptions& options);
  ~ContinuousBatch();
  ContinuousBatch(const ContinuousBatch&) = delete;
  ContinuousBatch& operator=(const ContinuousBatch&) = delete;

  // A request's number. Throws what check() does.
  std::int64_t add(std::vector<std::int64_t> prompt, GenerateOptions options = {});
  // InvalidArgument for an empty prompt, tokens that are no words of the model, a prompt that leaves no position of the
  // model, or no place in the cache, for a token, max_new_tokens below 1, logprobs of more tokens than there are and
  // what check_sampling refuses. From any thread.
  void check(std::span<const std::int64_t> prompt, const GenerateOptions& options) const;
  // One call of the model. The tokens that it gave, in the order of the requests' joining; none when nothing is to be
  // done, and in calls that only read prompts. Waits for the device. When the model throws, so does this, and the
  // requests are as before: step again, or cancel them. So does memory that runs out; no token is lost.
  std::vector<GenerationEvent> step();
  // False for a request that has ended. Its pages are free at once; there is no event.
  bool cancel(std::int64_t request);
  // No request is open.
  bool idle() const { return waiting_.empty() && running_.empty(); }
  // After an exchange of weights: no prompt uses what was computed before.
  void forget_prefixes() { cache_.forget_prefixes(); }

  ContinuousBatchStats stats() const;

 private:
  struct Request;
  using Requests = std::list<std::unique_ptr<Request>>;
  std::int64_t left_of(const Request& request) const;  // tokens that are not in the cache
  std::int64_t pages_for(std::int64_t tokens) const;
  std::int64_t places() const { return options_.cache.pages * options_.cache.page_size; }
  void join();
  void preempt_last();
  void schedule();
  static GenerationEvent draw(const Request& request, std::span<const float> logits);

  const LanguageModel& model_;
  ContinuousBatchOptions options_;
  LanguageModelShape shape_;
  KvCache cache_;
  Requests waiting_, running_;  // in the order of joining
  std::int64_t next_ = 0;
  ContinuousBatchStats stats_;
};

}  // namespace lockstep
