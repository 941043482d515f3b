#include "lockstep/models/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

void check_logits(std::span<const float> logits) {
  LOCKSTEP_CHECK(!logits.empty(), "[sample] expected a logit at least, got none");
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    LOCKSTEP_CHECK(logits[i] < std::numeric_limits<float>::infinity(), "[sample] expected finite logits or -inf, got ",
                   logits[i], " for token ", i);
    most = std::max(most, logits[i]);
  }
  LOCKSTEP_CHECK(most > -std::numeric_limits<float>::infinity(), "[sample] expected a finite logit at least, got ",
                 logits.size(), " that are -inf");
}

void penalize(std::vector<Candidate>& candidates, std::span<const std::int64_t> sequence, double penalty) {
  std::vector<bool> done(candidates.size());
  for (const std::int64_t token : sequence) {
    const auto at = static_cast<std::size_t>(token);
    if (token < 0 || at >= candidates.size() || done[at]) continue;
    done[at] = true;
    double& logit = candidates[at].logit;
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
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

void check_sampling(const SamplingOptions& options) {
  const auto check = [](bool good, const char* name, const char* range, auto got) {
    LOCKSTEP_CHECK(good, "[sample] expected ", name, " to be ", range, ", got ", got);
  };
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", "0 or more",
        options.temperature);
  check(options.top_k >= 0, "top_k", "0 or more", options.top_k);
  check(options.top_p > 0 && options.top_p <= 1, "top_p", "above 0, and 1 at most", options.top_p);
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", "from 0 to 1", options.min_p);
  // So that no logit that it changes becomes infinite.
  constexpr double kLeast = std::numeric_limits<float>::min(), kMost = std::numeric_limits<float>::max();
  check(options.repetition_penalty >= kLeast && options.repetition_penalty <= kMost, "repetition_penalty",
        "above 0, and what a float can hold", options.repetition_penalty);
}

std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> sequence,
                    const SamplingOptions& options) {
  check_sampling(options);
  check_logits(logits);
  if (options.temperature == 0 && options.repetition_penalty == 1)
    return std::max_element(logits.begin(), logits.end()) - logits.begin();  // the first of the largest
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<std::int64_t>(i)};
  if (options.repetition_penalty != 1) penalize(candidates, sequence, options.repetition_penalty);
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

}  // namespace lockstep
