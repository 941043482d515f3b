// How a normalized text is cut into the pieces that are encoded by themselves.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/models/text/splitter.h"

namespace lockstep::text {

struct PreTokenizerStep {
  enum Kind { split, prefix_space, metaspace } kind;
  Pattern pattern = Pattern::gpt2;                               // split
  std::string mark;                                              // metaspace: what stands for a space
  enum Scheme { never, first, always } prepend = Scheme::never;  // metaspace: where one is put before a piece
  bool cut = false;                                              // metaspace: a piece begins at every mark
};

// `piece` gets what the steps make of a text that is not empty. `first`: it begins the whole text.
void pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool first,
                  const std::function<void(std::string_view)>& piece);

}  // namespace lockstep::text
