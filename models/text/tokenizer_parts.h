// What a Tokenizer is made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/models/text/added_tokens.h"
#include "lockstep/models/text/byte_pairs.h"
#include "lockstep/models/text/normalizer.h"
#include "lockstep/models/text/pre_tokenizer.h"
#include "lockstep/models/text/token_texts.h"
#include "lockstep/models/text/tokenizer_file.h"

namespace lockstep::text {

struct TokenizerParts {
  struct Token {
    std::string name;   // as the file spells it
    std::string shown;  // what decoding begins with
    TokenText text;     // what it adds to a text
    bool special = false;
  };

  explicit TokenizerParts(TokenizerFile file);

  const Token* token(std::int64_t id) const;  // null: none

  std::vector<Token> tokens;  // by id; without a name where there is none
  std::unordered_map<std::string_view, std::int64_t> ids;
  AddedTokens added, added_normalized;  // looked for in the text as it is, and in the normalized one
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BytePairs model;
  std::vector<std::int64_t> prefix, suffix;
  Decoder decoder;
};

}  // namespace lockstep::text
