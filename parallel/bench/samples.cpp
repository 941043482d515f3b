#include "lockstep/parallel/bench/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lockstep::bench {

Samples::Samples(std::vector<double> values) : values_(std::move(values)), sorted_(values_) {
  std::sort(sorted_.begin(), sorted_.end());
}

double Samples::mean() const {
  if (values_.empty()) return 0;
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(count());
}

double Samples::stddev() const {
  if (count() < 2) return 0;
  const double middle = mean();
  double squares = 0;
  for (const double value : values_) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(count() - 1));
}

double Samples::percentile(double percent) const {
  if (sorted_.empty()) return 0;
  const double place = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(count() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double above = sorted_[std::min(below + 1, count() - 1)];
  return sorted_[below] + (place - static_cast<double>(below)) * (above - sorted_[below]);
}

double Samples::spread() const {
  const double middle = median();
  return middle == 0 ? 0 : (percentile(95) - percentile(5)) / std::abs(middle);
}

Samples Samples::times(double factor) const {
  std::vector<double> scaled = values_;
  for (double& value : scaled) value *= factor;
  return Samples(std::move(scaled));
}

Samples Samples::into(double work) const {
  std::vector<double> rates = values_;
  for (double& value : rates) value = work / value;
  return Samples(std::move(rates));
}

}  // namespace lockstep::bench
