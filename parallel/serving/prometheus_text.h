// Lines of Prometheus' text format 0.0.4. Private to the library.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/serving/serving_stats.h"

namespace lockstep::detail {

class PrometheusText {
 public:
  explicit PrometheusText(std::string prefix) : prefix_(std::move(prefix)) {}

  // name="value", with what the format escapes; what is no UTF-8, as the whole text must be, becomes U+FFFD.
  static std::string label(std::string_view name, std::string_view value);

  // What the samples behind it are of. `type`: counter, gauge or histogram.
  void metric(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view labels, double value, std::string_view suffix = "");
  void histogram(std::string_view labels, const Histogram& histogram);
  std::string take() { return std::move(text_); }

 private:
  std::string prefix_, name_, text_;
};

}  // namespace lockstep::detail
