// Which samples an epoch has, and in which order: a function of the sampler and the number of the epoch, nothing else.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

// Samplers are values; indices() may be called from any thread.
template <class S>
concept Sampler = requires(const S& sampler, std::uint64_t epoch) {
  { sampler.size() } -> std::convertible_to<std::int64_t>;  // how many indices an epoch has
  { sampler.indices(epoch) } -> std::same_as<std::vector<std::int64_t>>;
};
// The same in batches.
template <class S>
concept BatchesOfIndices = requires(const S& sampler, std::uint64_t epoch) {
  { sampler.size() } -> std::convertible_to<std::int64_t>;  // how many batches an epoch has
  { sampler.batches(epoch) } -> std::same_as<std::vector<std::vector<std::int64_t>>>;
};

// 0, 1, … count - 1.
class LOCKSTEP_API SequentialSampler {
 public:
  explicit SequentialSampler(std::int64_t count);
  std::int64_t size() const { return count_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  std::int64_t count_;
};

struct RandomSamplerOptions {
  std::uint64_t seed = 0;
  bool replacement = false;  // each index drawn from all of them
  // How many to draw, at most `count` without replacement; default: `count`.
  std::optional<std::int64_t> samples = std::nullopt;
};

// 0 … count - 1 in an order that (seed, epoch) decides.
class LOCKSTEP_API RandomSampler {
 public:
  // Throws InvalidArgument for a negative number, or more samples than there are.
  explicit RandomSampler(std::int64_t count, RandomSamplerOptions options = {});
  std::int64_t size() const { return samples_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  std::int64_t count_, samples_;
  std::uint64_t seed_;
  bool replacement_;
};

// The given indices, as they are or, with a seed, in an order that (seed, epoch) decides.
class LOCKSTEP_API SubsetSampler {
 public:
  explicit SubsetSampler(std::vector<std::int64_t> indices, std::optional<std::uint64_t> seed = std::nullopt);
  std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  std::vector<std::int64_t> indices_;
  std::optional<std::uint64_t> seed_;
};

struct WeightedRandomSamplerOptions {
  std::uint64_t seed = 0;
  bool replacement = true;
};

// Indices drawn with probabilities proportional to their weights; without replacement, one after the other among those
// that are left. An index of weight 0 is never drawn.
class LOCKSTEP_API WeightedRandomSampler {
 public:
  // Throws InvalidArgument for a weight that is negative or not finite, weights without a positive one, and without
  // replacement for more samples than there are positive weights.
  WeightedRandomSampler(std::vector<double> weights, std::int64_t samples, WeightedRandomSamplerOptions options = {});
  std::int64_t size() const { return samples_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  std::vector<double> weights_;
  std::int64_t samples_;
  WeightedRandomSamplerOptions options_;
};

// Batches of consecutive indices of a sampler; the last one is smaller, or left out with drop_last.
template <Sampler S>
class BatchSampler {
 public:
  BatchSampler(S sampler, std::int64_t batch_size, bool drop_last = false)
      : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
    LOCKSTEP_CHECK(batch_size > 0, "[BatchSampler] expected a positive batch_size, got ", batch_size);
  }
  std::int64_t size() const {
    const std::int64_t count = sampler_.size();
    return count / batch_size_ + (!drop_last_ && count % batch_size_ != 0);
  }
  std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch) const {
    const std::vector<std::int64_t> all = sampler_.indices(epoch);
    const auto count = static_cast<std::int64_t>(all.size());
    std::vector<std::vector<std::int64_t>> batches;
    for (std::int64_t begin = 0; begin < count; begin += batch_size_) {
      const std::int64_t end = std::min(begin + batch_size_, count);
      if (drop_last_ && end - begin < batch_size_) break;
      batches.emplace_back(all.begin() + begin, all.begin() + end);
    }
    return batches;
  }

 private:
  S sampler_;
  std::int64_t batch_size_;
  bool drop_last_;
};

}  // namespace lockstep
