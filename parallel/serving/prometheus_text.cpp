#include "lockstep/parallel/serving/prometheus_text.h"

#include <array>
#include <charconv>

#include "lockstep/runtime/strings.h"
#include "lockstep/runtime/utf8.h"

namespace lockstep::detail {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

}  // namespace

std::string PrometheusText::label(std::string_view name, std::string_view value) {
  std::string text = cat(name, "=\"");
  for (const char c : replaced_utf8(value)) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text + '"';
}

void PrometheusText::metric(std::string_view name, std::string_view type, std::string_view help) {
  name_ = cat(prefix_, name);
  text_ += cat("# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n");
}

void PrometheusText::sample(std::string_view labels, double value, std::string_view suffix) {
  text_ += cat(name_, suffix, "{", labels, "} ", number(value), "\n");
}

void PrometheusText::histogram(std::string_view labels, const Histogram& histogram) {
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.bounds.size(); ++i) {
    below += histogram.counts[i];
    sample(cat(labels, ",le=\"", number(histogram.bounds[i]), "\""), static_cast<double>(below), "_bucket");
  }
  sample(cat(labels, ",le=\"+Inf\""), static_cast<double>(histogram.count), "_bucket");
  sample(labels, histogram.sum, "_sum");
  sample(labels, static_cast<double>(histogram.count), "_count");
}

}  // namespace lockstep::detail
