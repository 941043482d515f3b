#include "lockstep/models/generation/continuous_batch.h"

#include <algorithm>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/context.h"

namespace lockstep {

struct ContinuousBatch::Request {
  std::int64_t number;
  std::vector<std::int64_t> tokens;  // the prompt's, and those that were drawn
  std::size_t prompt;                // tokens of the prompt
  std::size_t end;                   // tokens that it may have at most
  GenerateOptions options;
  std::int64_t sequence = -1;  // in the cache, while it runs
  std::int64_t scheduled = 0;  // tokens that the step being made computes
};

ContinuousBatch::ContinuousBatch(const LanguageModel& model, const ContinuousBatchOptions& options)
    : model_(model), options_(options), shape_(model.shape()), cache_(model, options.cache) {
  LOCKSTEP_CHECK(options.max_sequences > 0 && options.max_tokens >= options.max_sequences,
                 "[ContinuousBatch] expected max_sequences of at least 1, and max_tokens of at least as many, got ",
                 options.max_sequences, " and ", options.max_tokens);
}
ContinuousBatch::~ContinuousBatch() = default;

void ContinuousBatch::check(std::span<const std::int64_t> prompt, const GenerateOptions& options) const {
  check_sampling(options.sampling, shape_.vocabulary);
  LOCKSTEP_CHECK(!options.logprobs || (*options.logprobs >= 0 && *options.logprobs <= shape_.vocabulary),
                 "[ContinuousBatch] expected logprobs of the most probable 0 to ", shape_.vocabulary, " tokens, got ",
                 *options.logprobs);
  LOCKSTEP_CHECK(options.max_new_tokens > 0, "[ContinuousBatch] expected max_new_tokens of at least 1, got ",
                 options.max_new_tokens);
  LOCKSTEP_CHECK(!prompt.empty(), "[ContinuousBatch] expected a prompt of one token at least, got none");
  for (const std::int64_t token : prompt)
    LOCKSTEP_CHECK(token >= 0 && token < shape_.vocabulary, "[ContinuousBatch] expected tokens from 0 to ",
                   shape_.vocabulary - 1, ", got ", token, " in the prompt");
  const auto length = static_cast<std::int64_t>(prompt.size());
  LOCKSTEP_CHECK(length <= places(), "[ContinuousBatch] expected a prompt of at most ", places(),
                 " tokens, which is what the cache has pages for, got ", length);
  LOCKSTEP_CHECK(shape_.positions == 0 || length < shape_.positions,
                 "[ContinuousBatch] expected a prompt of fewer than ", shape_.positions,
                 " tokens, which is what the model has positions for, got ", length);
}

std::int64_t ContinuousBatch::add(std::vector<std::int64_t> prompt, GenerateOptions options) {
  check(prompt, options);
  const auto length = static_cast<std::int64_t>(prompt.size());
  // The last token is drawn, and not computed any more.
  std::int64_t most = places() + 1;
  if (shape_.positions > 0) most = std::min(most, shape_.positions);
  most = length + std::min(options.max_new_tokens, most - length);
  auto request = std::make_unique<Request>();
  request->number = next_;
  request->tokens = std::move(prompt);
  request->prompt = request->tokens.size();
  request->tokens.reserve(static_cast<std::size_t>(most));  // so that no token that was drawn is lost
  request->end = static_cast<std::size_t>(most);
  request->options = std::move(options);
  waiting_.push_back(std::move(request));
  return next_++;
}

std::int64_t ContinuousBatch::left_of(const Request& request) const {
  return static_cast<std::int64_t>(request.tokens.size()) - cache_.length(request.sequence);
}

std::int64_t ContinuousBatch::pages_for(std::int64_t tokens) const {
  return (tokens + options_.cache.page_size - 1) / options_.cache.page_size;
}

// Who waits, while there are pages for all of its tokens beside those that the others will take next.
void ContinuousBatch::join() {
  std::int64_t promised = 0;
  const auto promise = [&](const Request& request) {
    const auto length = static_cast<std::int64_t>(request.tokens.size());
    promised += pages_for(length + 1) - pages_for(cache_.length(request.sequence));
  };
  for (const auto& request : running_) promise(*request);
  while (!waiting_.empty() && static_cast<std::int64_t>(running_.size()) < options_.max_sequences) {
    Request& request = *waiting_.front();
    request.sequence = cache_.begin(request.tokens);
    const KvCacheStats now = cache_.stats();
    const auto length = static_cast<std::int64_t>(request.tokens.size());
    if (promised + pages_for(length) - pages_for(cache_.length(request.sequence)) > now.pages - now.used) {
      cache_.end(std::exchange(request.sequence, -1));
      return;
    }
    stats_.shared_tokens += static_cast<std::uint64_t>(cache_.length(request.sequence));
    promise(request);
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
}

// What the sequence that joined last holds goes to others. It is the next to join.
void ContinuousBatch::preempt_last() {
  Request& last = *running_.back();
  cache_.end(std::exchange(last.sequence, -1));
  ++stats_.preempted;
  waiting_.splice(waiting_.begin(), running_, std::prev(running_.end()));
}

// Next tokens first, so that nobody who gets text waits for a long prompt; then prompts, within max_tokens.
void ContinuousBatch::schedule() {
  join();
  for (const auto& request : running_) request->scheduled = 0;
  std::int64_t left = options_.max_tokens;
  for (const bool prompts : {false, true}) {
    for (auto at = running_.begin(); at != running_.end() && left > 0; ++at) {
      Request& request = **at;
      const std::int64_t tokens = left_of(request), count = std::min(tokens, left);
      if ((tokens > 1) != prompts) continue;
      while (request.sequence >= 0 && !cache_.reserve(request.sequence, count)) preempt_last();
      if (request.sequence < 0) break;  // it was the last one, and waits
      request.scheduled = count;
      left -= count;
    }
  }
}

std::vector<GenerationEvent> ContinuousBatch::step() {
  schedule();
  std::vector<KvCache::Feed> feeds;
  for (const auto& request : running_) {
    if (request->scheduled == 0) continue;
    const auto begin = static_cast<std::size_t>(cache_.length(request->sequence));
    const auto count = static_cast<std::size_t>(request->scheduled);
    feeds.push_back(
        {request->sequence, std::span(request->tokens).subspan(begin, count), begin + count == request->tokens.size()});
  }
  if (feeds.empty()) return {};
  std::vector<GenerationEvent> events;
  events.reserve(feeds.size());
  const Tensor logits = cache_.decode(model_, feeds);
  const auto vocabulary = static_cast<std::size_t>(shape_.vocabulary);
  const auto is_drawn = [this](const Request& request) { return request.scheduled > 0 && left_of(request) == 0; };
  try {
    const NoGrad no_grad;
    std::vector<float> numbers;
    if (logits.defined()) numbers = logits.to(DType::f32).to_vector<float>();
    for (const auto& request : running_)  // all of them before any request changes: no token that was drawn is lost
      if (is_drawn(*request))
        events.push_back(draw(*request, std::span(numbers).subspan(events.size() * vocabulary, vocabulary)));
  } catch (...) {  // the sequences have tokens whose logits are lost: computed again
    while (!running_.empty()) preempt_last();
    throw;
  }
  ++stats_.steps;
  for (const KvCache::Feed& feed : feeds) stats_.computed_tokens += feed.tokens.size();
  auto event = events.cbegin();
  for (auto at = running_.begin(); at != running_.end();) {
    const auto next = std::next(at);
    Request& request = **at;
    if (is_drawn(request)) {
      if (event->token >= 0) request.tokens.push_back(event->token);
      if (event->finish) {
        cache_.end(request.sequence);
        running_.erase(at);
      }
      ++event;
    }
    at = next;
  }
  return events;
}

GenerationEvent ContinuousBatch::draw(const Request& request, std::span<const float> logits) {
  GenerationEvent event{request.number, -1, std::nullopt, nullptr, std::nullopt};
  const GenerateOptions& options = request.options;
  try {
    event.token = sample(logits, request.tokens, options.sampling, request.prompt);
    if (options.logprobs) event.logprobs = logprobs(logits, event.token, *options.logprobs);
  } catch (const InvalidArgument&) {
    event.finish = FinishReason::failed;
    event.error = std::current_exception();
    return event;
  }
  const auto& stop = options.stop_tokens;
  if (std::find(stop.begin(), stop.end(), event.token) != stop.end())
    event.finish = FinishReason::stop;
  else if (request.tokens.size() + 1 == request.end)
    event.finish = FinishReason::length;
  return event;
}

bool ContinuousBatch::cancel(std::int64_t number) {
  for (Requests* requests : {&running_, &waiting_}) {
    const auto found = std::find_if(requests->begin(), requests->end(),
                                    [&](const auto& request) { return request->number == number; });
    if (found == requests->end()) continue;
    if ((*found)->sequence >= 0) cache_.end((*found)->sequence);
    requests->erase(found);
    return true;
  }
  return false;
}

ContinuousBatchStats ContinuousBatch::stats() const {
  ContinuousBatchStats stats = stats_;
  stats.waiting = static_cast<std::int64_t>(waiting_.size());
  stats.running = static_cast<std::int64_t>(running_.size());
  stats.cache = cache_.stats();
  return stats;
}

}  // namespace lockstep
