#include "lockstep/tensor/data/sampler.h"

#include <cmath>
#include <numeric>

#include "lockstep/tensor/data/random_engine.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> counting(std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

// The first `wanted` places become a random choice in random order (Fisher and Yates).
void shuffle(std::vector<std::int64_t>& indices, std::size_t wanted, RandomEngine random) {
  for (std::size_t i = 0; i < wanted; ++i) std::swap(indices[i], indices[i + random.below(indices.size() - i)]);
  indices.resize(wanted);
}

}  // namespace

SequentialSampler::SequentialSampler(std::int64_t count) : count_(count) {
  LOCKSTEP_CHECK(count >= 0, "[SequentialSampler] expected a number of samples, got ", count);
}

std::vector<std::int64_t> SequentialSampler::indices(std::uint64_t /*epoch*/) const { return counting(count_); }

RandomSampler::RandomSampler(std::int64_t count, RandomSamplerOptions options)
    : count_(count), samples_(options.samples.value_or(count)), seed_(options.seed), replacement_(options.replacement) {
  LOCKSTEP_CHECK(count >= 0 && samples_ >= 0, "[RandomSampler] expected a number of samples, got ", samples_, " of ",
                 count);
  LOCKSTEP_CHECK(replacement_ ? samples_ == 0 || count > 0 : samples_ <= count,
                 "[RandomSampler] expected at most as many samples as there are, got ", samples_, " of ", count);
}

std::vector<std::int64_t> RandomSampler::indices(std::uint64_t epoch) const {
  RandomEngine random(seed_, epoch);
  if (replacement_) {
    std::vector<std::int64_t> drawn(static_cast<std::size_t>(samples_));
    for (std::int64_t& index : drawn)
      index = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(count_)));
    return drawn;
  }
  std::vector<std::int64_t> all = counting(count_);
  shuffle(all, static_cast<std::size_t>(samples_), random);
  return all;
}

SubsetSampler::SubsetSampler(std::vector<std::int64_t> indices, std::optional<std::uint64_t> seed)
    : indices_(std::move(indices)), seed_(seed) {}

std::vector<std::int64_t> SubsetSampler::indices(std::uint64_t epoch) const {
  std::vector<std::int64_t> order = indices_;
  if (seed_) shuffle(order, order.size(), RandomEngine(*seed_, epoch));
  return order;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, std::int64_t samples,
                                             WeightedRandomSamplerOptions options)
    : weights_(std::move(weights)), samples_(samples), options_(options) {
  std::int64_t positive = 0;
  double sum = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    LOCKSTEP_CHECK(weights_[i] >= 0 && std::isfinite(weights_[i]),
                   "[WeightedRandomSampler] expected weights that are not negative, got ", weights_[i], " at ", i);
    positive += weights_[i] > 0;
    sum += weights_[i];
  }
  LOCKSTEP_CHECK(positive > 0 && std::isfinite(sum),
                 "[WeightedRandomSampler] expected a positive weight and a finite sum, got ", positive,
                 " positive weights with the sum ", sum);
  LOCKSTEP_CHECK(samples >= 0 && (options.replacement || samples <= positive),
                 "[WeightedRandomSampler] expected at most as many samples as positive weights, got ", samples, " of ",
                 positive);
}

std::vector<std::int64_t> WeightedRandomSampler::indices(std::uint64_t epoch) const {
  RandomEngine random(options_.seed, epoch);
  std::vector<std::int64_t> drawn;
  drawn.reserve(static_cast<std::size_t>(samples_));
  if (options_.replacement) {
    std::vector<double> sums(weights_.size());
    std::partial_sum(weights_.begin(), weights_.end(), sums.begin());
    // Where rounding takes a draw to the very end, the last index that has a weight gets it.
    const auto last = std::lower_bound(sums.begin(), sums.end(), sums.back());
    for (std::int64_t i = 0; i < samples_; ++i) {
      const auto found = std::upper_bound(sums.begin(), sums.end(), random.uniform() * sums.back());
      drawn.push_back(std::min(found, last) - sums.begin());
    }
    return drawn;
  }
  // Each index waits for an exponential time with its weight as the rate; those that come first are the draw
  // (Efraimidis and Spirakis).
  std::vector<std::pair<double, std::int64_t>> times;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (weights_[i] > 0)
      times.emplace_back(-std::log(1 - random.uniform()) / weights_[i], static_cast<std::int64_t>(i));
  std::partial_sort(times.begin(), times.begin() + samples_, times.end());
  for (std::int64_t i = 0; i < samples_; ++i) drawn.push_back(times[static_cast<std::size_t>(i)].second);
  return drawn;
}

}  // namespace lockstep
