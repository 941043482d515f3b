// The patterns by which published tokenizers cut text before they merge bytes, each as a scanner.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep::text {

enum class Pattern { gpt2, llama3, qwen2 };

// Of the regular expression as tokenizer.json has it; empty where there is no scanner for it.
std::optional<Pattern> pattern_of(std::string_view expression);

// The bytes of the first match in a valid text that is not empty. The matches cover all of a text.
std::size_t match(Pattern pattern, std::string_view text);

}  // namespace lockstep::text
