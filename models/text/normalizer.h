// What a text becomes before it is cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct NormalizerStep {
  enum { nfc, prepend, replace } kind;
  std::string text;     // that is put before a text that is not empty; or the one that is replaced, never empty
  std::string content;  // by which it is replaced
};

std::string normalized(const std::vector<NormalizerStep>& steps, std::string_view text);

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace lockstep::text
