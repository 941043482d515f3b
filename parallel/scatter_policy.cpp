#include "lockstep/parallel/scatter_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

template <class T>
std::string list(const std::vector<T>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += cat(i ? ", " : "", numbers[i]);
  return text + "]";
}

std::vector<std::int64_t> by_weight(const std::vector<double>& weights, std::int64_t count) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> shares(weights.size());
  std::vector<double> remainders(weights.size());
  std::int64_t left = count;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(count) * (weights[i] / sum);
    // Rounding must not give away more than there is, and the largest counts round to what no integer holds.
    shares[i] = exact < static_cast<double>(left) ? static_cast<std::int64_t>(std::floor(exact)) : left;
    remainders[i] = weights[i] > 0 ? exact - std::floor(exact) : -std::numeric_limits<double>::infinity();
    left -= shares[i];
  }
  while (left > 0) {
    const auto largest = std::max_element(remainders.begin(), remainders.end());
    ++shares[static_cast<std::size_t>(largest - remainders.begin())];
    *largest -= 1;  // the others come first, should there be another round
    --left;
  }
  return shares;
}

}  // namespace

ScatterPolicy ScatterPolicy::sizes(std::vector<std::int64_t> sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    LOCKSTEP_CHECK(size >= 0 && !__builtin_add_overflow(sum, size, &sum),
                   "[scatter] expected sizes of at least 0 with a sum below 2^63, got ", list(sizes));
  }
  ScatterPolicy policy(Kind::sizes);
  policy.sizes_ = std::move(sizes);
  return policy;
}

ScatterPolicy ScatterPolicy::weights(std::vector<double> weights) {
  double sum = 0;
  for (const double weight : weights) {
    LOCKSTEP_CHECK(std::isfinite(weight) && weight >= 0, "[scatter] expected finite weights of at least 0, got ",
                   list(weights));
    sum += weight;
  }
  LOCKSTEP_CHECK(sum > 0 && std::isfinite(sum), "[scatter] expected weights with a positive sum, got ", list(weights));
  ScatterPolicy policy(Kind::weights);
  policy.weights_ = std::move(weights);
  return policy;
}

std::vector<std::int64_t> ScatterPolicy::shares(std::int64_t count, int devices) const {
  const auto device_count = static_cast<std::size_t>(devices);
  switch (kind_) {
    case Kind::sizes: {
      LOCKSTEP_CHECK(sizes_.size() == device_count, "[scatter] expected one size per device (", devices, "), got ",
                     list(sizes_));
      const std::int64_t sum = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
      LOCKSTEP_CHECK(sum == count, "[scatter] expected sizes that add up to ", count, ", got ", list(sizes_),
                     ", which add up to ", sum);
      return sizes_;
    }
    case Kind::weights:
      LOCKSTEP_CHECK(weights_.size() == device_count, "[scatter] expected one weight per device (", devices, "), got ",
                     list(weights_));
      return by_weight(weights_, count);
    case Kind::balanced: {
      std::vector<std::int64_t> shares(device_count, count / devices);
      for (std::int64_t i = 0; i < count % devices; ++i) ++shares[static_cast<std::size_t>(i)];
      return shares;
    }
    case Kind::chunk:
      break;
  }
  const std::int64_t piece = count / devices + (count % devices != 0);
  std::vector<std::int64_t> shares(device_count);
  for (std::int64_t& share : shares) {
    share = std::min(piece, count);
    count -= share;
  }
  return shares;
}

}  // namespace lockstep
