#include "lockstep/models/text/pre_tokenizer.h"

#include <algorithm>
#include <span>

#include "lockstep/models/text/normalizer.h"

namespace lockstep::text {
namespace {

using Pieces = std::function<void(std::string_view)>;

void apply(std::span<const PreTokenizerStep> steps, std::string_view text, bool first, const Pieces& piece) {
  if (steps.empty()) return piece(text);
  const PreTokenizerStep& step = steps.front();
  const auto rest = steps.subspan(1);
  switch (step.kind) {
    case PreTokenizerStep::split:
      for (; !text.empty(); first = false) {
        const std::size_t bytes = match(step.pattern, text);
        apply(rest, text.substr(0, bytes), first, piece);
        text.remove_prefix(bytes);
      }
      return;
    case PreTokenizerStep::prefix_space:
      if (text.starts_with(' ')) return apply(rest, text, first, piece);
      return apply(rest, std::string(" ").append(text), first, piece);
    case PreTokenizerStep::metaspace:
      break;
  }
  std::string marked = replaced(text, " ", step.mark);
  if (!marked.starts_with(step.mark) &&
      (step.prepend == PreTokenizerStep::always || (step.prepend == PreTokenizerStep::first && first)))
    marked.insert(0, step.mark);
  text = marked;
  if (!step.cut) return apply(rest, text, first, piece);
  for (; !text.empty(); first = false) {
    const std::size_t from = text.starts_with(step.mark) ? step.mark.size() : 0;
    const std::size_t bytes = std::min(text.find(step.mark, from), text.size());
    apply(rest, text.substr(0, bytes), first, piece);
    text.remove_prefix(bytes);
  }
}

}  // namespace

void pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool first, const Pieces& piece) {
  apply(steps, text, first, piece);
}

}  // namespace lockstep::text
