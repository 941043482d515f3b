// A tokenizer.json as this library understands it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/models/text/added_tokens.h"
#include "lockstep/models/text/byte_pairs.h"
#include "lockstep/models/text/normalizer.h"
#include "lockstep/models/text/pre_tokenizer.h"
#include "lockstep/models/text/token_texts.h"

namespace lockstep::text {

struct TokenizerFile {
  std::vector<std::string> vocabulary;  // by id; empty where the model has no token
  std::vector<MergeRule> rules;
  BytePairOptions options;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool byte_level = false;                   // pieces are encoded as bytes in the byte-level alphabet
  std::vector<std::int64_t> prefix, suffix;  // what the post-processor puts around the tokens
  Decoder decoder;
};

// `name` is that of the file in messages. Throws FormatError for what is no tokenizer.json, NotSupported for components
// that this library has not: both name the field.
TokenizerFile read_tokenizer(std::string_view json, const std::string& name);

}  // namespace lockstep::text
