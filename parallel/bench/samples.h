// The samples of one measured figure, and what is said of them.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::bench {

class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values);  // in the order in which they were taken; none of them is left out

  const std::vector<double>& values() const { return values_; }
  std::size_t count() const { return values_.size(); }

  // 0 where there is no sample.
  double median() const { return percentile(50); }
  double min() const { return percentile(0); }
  double max() const { return percentile(100); }
  double mean() const;
  double stddev() const;  // with n - 1; 0 for one sample
  // Between two samples on a line, as NumPy's default is. `percent` from 0 to 100.
  double percentile(double percent) const;
  // From the 5th to the 95th percentile, as a part of the median.
  double spread() const;

  Samples times(double factor) const;
  Samples into(double work) const;  // work / sample: rates

 private:
  std::vector<double> values_, sorted_;
};

}  // namespace lockstep::bench
