#include "lockstep/models/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/kernels/philox.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

struct Candidate {
  double logit;  // divided by the temperature where that comes first
  std::int64_t token;
};
// More probable ones first, of equal ones the lower number.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// In [0, 1).
double draw(std::uint64_t seed, std::uint64_t position) {
  constexpr std::uint64_t kStream = 0x746f6b656e;  // other numbers than those of operations with the same seed
  const philox::Block block = philox::block(position, kStream, seed);
  return static_cast<double>(philox::join(block.words[0], block.words[1]) >> 11) * 0x1p-53;
}

void check_logits(const char* op, std::span<const float> logits) {
  LOCKSTEP_CHECK(!logits.empty(), "[", op, "] expected a logit at least, got none");
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    LOCKSTEP_CHECK(logits[i] < std::numeric_limits<float>::infinity(), "[", op,
                   "] expected finite logits or -inf, got ", logits[i], " for token ", i);
    most = std::max(most, logits[i]);
  }
  LOCKSTEP_CHECK(most > -std::numeric_limits<float>::infinity(), "[", op, "] expected a finite logit at least, got ",
                 logits.size(), " that are -inf");
}

bool changes_logits(const SamplingOptions& o) {
  return o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0 || !o.logit_bias.empty();
}

// change(logit, how often) of each token that the sequence has. `candidates` are all tokens, in order.
template <class Change>
void change_present(std::vector<Candidate>& candidates, std::span<const std::int64_t> sequence, Change change) {
  std::vector<std::uint32_t> counts(candidates.size());
  const auto known = [&](std::int64_t token) { return token >= 0 && static_cast<std::size_t>(token) < counts.size(); };
  for (const std::int64_t token : sequence)
    if (known(token)) ++counts[static_cast<std::size_t>(token)];
  for (const std::int64_t token : sequence) {
    if (!known(token)) continue;
    const auto at = static_cast<std::size_t>(token);
    if (const std::uint32_t count = std::exchange(counts[at], 0)) change(candidates[at].logit, count);
  }
}

void change_logits(std::vector<Candidate>& candidates, std::span<const std::int64_t> sequence, std::size_t prompt,
                   const SamplingOptions& o) {
  for (const LogitBias& each : o.logit_bias) candidates[static_cast<std::size_t>(each.token)].logit += each.bias;
  if (o.repetition_penalty != 1)
    change_present(candidates, sequence, [&](double& logit, std::uint32_t) {
      logit = logit < 0 ? logit * o.repetition_penalty : logit / o.repetition_penalty;
    });
  if (o.presence_penalty != 0 || o.frequency_penalty != 0)
    change_present(candidates, sequence.subspan(prompt), [&](double& logit, std::uint32_t count) {
      logit -= count * o.frequency_penalty + o.presence_penalty;
    });
}

// The k first, and what is as probable as the last of them.
void keep_top_k(std::vector<Candidate>& candidates, std::int64_t k) {
  if (k == 0 || k >= static_cast<std::int64_t>(candidates.size())) return;
  std::vector<Candidate> sorted = candidates;
  const auto last = sorted.begin() + (k - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), before);
  const double least = last->logit;
  std::erase_if(candidates, [&](const Candidate& c) { return c.logit < least; });
}

double most_probable(const std::vector<Candidate>& candidates) {
  double most = -std::numeric_limits<double>::infinity();
  for (const Candidate& c : candidates) most = std::max(most, c.logit);
  return most;
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  if (top_p >= 1) return;
  const double most = most_probable(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) sum += std::exp(c.logit - most);
  // In parts, since a few of many thousands are enough as a rule.
  double reached = 0;
  std::size_t count = 0, sorted = 0;
  while (count < candidates.size() && reached < top_p * sum) {
    if (count == sorted) {
      sorted = std::min(candidates.size(), 4 * sorted + 256);
      const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(count);
      const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
      if (end != candidates.end()) std::nth_element(begin, end, candidates.end(), before);
      std::sort(begin, end, before);
    }
    reached += std::exp(candidates[count++].logit - most);
  }
  candidates.resize(std::max<std::size_t>(count, 1));
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  if (min_p <= 0) return;
  const double least = most_probable(candidates) + std::log(min_p);
  std::erase_if(candidates, [&](const Candidate& c) { return c.logit < least; });
}

}  // namespace

void check_sampling(const SamplingOptions& options, std::int64_t vocabulary) {
  const auto check = [](bool good, const char* name, const char* range, auto got) {
    LOCKSTEP_CHECK(good, "[sample] expected ", name, " to be ", range, ", got ", got);
  };
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", "0 or more",
        options.temperature);
  check(options.top_k >= 0, "top_k", "0 or more", options.top_k);
  check(options.top_p > 0 && options.top_p <= 1, "top_p", "above 0, and 1 at most", options.top_p);
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", "from 0 to 1", options.min_p);
  // So that sums and products of these with a logit are finite.
  constexpr double kLeast = std::numeric_limits<float>::min(), kMost = std::numeric_limits<float>::max();
  check(options.repetition_penalty >= kLeast && options.repetition_penalty <= kMost, "repetition_penalty",
        "above 0, and what a float can hold", options.repetition_penalty);
  const auto check_float = [&](const char* name, double value) {
    check(std::abs(value) <= kMost, name, "what a float can hold", value);
  };
  check_float("presence_penalty", options.presence_penalty);
  check_float("frequency_penalty", options.frequency_penalty);
  for (const LogitBias& each : options.logit_bias) {
    check_float("biases of logit_bias", each.bias);
    LOCKSTEP_CHECK(each.token >= 0 && each.token < vocabulary, "[sample] expected tokens of logit_bias from 0 to ",
                   vocabulary - 1, ", got ", each.token);
  }
}

std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> sequence,
                    const SamplingOptions& options, std::size_t prompt) {
  check_logits("sample", logits);
  check_sampling(options, static_cast<std::int64_t>(logits.size()));
  LOCKSTEP_CHECK(prompt <= sequence.size(), "[sample] expected a prompt of at most the sequence's ", sequence.size(),
                 " tokens, got ", prompt);
  const bool changes = changes_logits(options);
  if (options.temperature == 0 && !changes)
    return std::max_element(logits.begin(), logits.end()) - logits.begin();  // the first of the largest
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<std::int64_t>(i)};
  if (changes) change_logits(candidates, sequence, prompt, options);
  if (options.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), before)->token;
  std::erase_if(candidates, [](const Candidate& c) { return c.logit == -std::numeric_limits<double>::infinity(); });
  const auto warm = [&] {
    const double most = most_probable(candidates);  // so that no temperature makes a logit infinite
    for (Candidate& c : candidates) c.logit = (c.logit - most) / options.temperature;
  };
  if (options.order == SamplingOrder::temperature_first) warm();
  keep_top_k(candidates, options.top_k);
  keep_top_p(candidates, options.top_p);
  keep_min_p(candidates, options.min_p);
  if (options.order == SamplingOrder::temperature_last) warm();

  const double most = most_probable(candidates);
  double sum = 0;
  for (Candidate& c : candidates) sum += c.logit = std::exp(c.logit - most);
  double left = draw(options.seed, sequence.size()) * sum;
  std::int64_t last = candidates.front().token;
  for (const Candidate& c : candidates) {
    if (c.logit > 0) last = c.token;
    if (left < c.logit) return c.token;
    left -= c.logit;
  }
  return last;  // where rounding leaves something
}

TokenLogprobs logprobs(std::span<const float> logits, std::int64_t token, std::int64_t count) {
  check_logits("logprobs", logits);
  const auto words = static_cast<std::int64_t>(logits.size());
  LOCKSTEP_CHECK(token >= 0 && token < words, "[logprobs] expected a token from 0 to ", words - 1, ", got ", token);
  LOCKSTEP_CHECK(count >= 0 && count <= words, "[logprobs] expected the most probable 0 to ", words, " tokens, got ",
                 count);
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const auto logprob = [&](double logit) { return logit - most - std::log(sum); };

  std::vector<Candidate> top;  // a heap, with the least probable one in front
  top.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < words && count > 0; ++i) {
    const Candidate each{logits[static_cast<std::size_t>(i)], i};
    if (each.logit == -std::numeric_limits<double>::infinity()) continue;
    if (static_cast<std::int64_t>(top.size()) == count) {
      if (!before(each, top.front())) continue;
      std::pop_heap(top.begin(), top.end(), before);
      top.pop_back();
    }
    top.push_back(each);
    std::push_heap(top.begin(), top.end(), before);
  }
  std::sort_heap(top.begin(), top.end(), before);
  TokenLogprobs result{logprob(logits[static_cast<std::size_t>(token)]), {}};
  result.top.reserve(top.size());
  for (const Candidate& each : top) result.top.push_back({each.token, logprob(each.logit)});
  return result;
}

}  // namespace lockstep
