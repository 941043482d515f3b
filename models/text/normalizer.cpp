#include "lockstep/models/text/normalizer.h"

#include "lockstep/models/text/unicode.h"

namespace lockstep::text {

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, done)) {
    out.append(text.substr(done, at - done)).append(content);
    done = at + pattern.size();
  }
  return out.append(text.substr(done));
}

std::string normalized(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    if (step.kind == NormalizerStep::nfc) {
      out = nfc(out);
    } else if (step.kind == NormalizerStep::replace) {
      out = replaced(out, step.text, step.content);
    } else if (!out.empty()) {
      out.insert(0, step.text);
    }
  }
  return out;
}

}  // namespace lockstep::text
