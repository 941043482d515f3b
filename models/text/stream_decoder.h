// The text of tokens that come one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/models/text/tokenizer.h"

namespace lockstep {

struct StreamOptions {
  bool skip_special = true;        // leaves special tokens out
  std::vector<std::string> stops;  // the text ends before the first of them; UTF-8, none empty
};

// Gives out whole characters only, and nothing that may turn out to be the beginning of a stop string: what it has
// given out stays. All of it together is what decode() gives of the same tokens, up to the stop; only a run of <0xNN>
// tokens that make no text may have fewer U+FFFD. For one thread at a time; each sequence has its own.
class LOCKSTEP_API StreamDecoder {
 public:
  // Throws InvalidArgument for a stop string that is empty or not UTF-8.
  explicit StreamDecoder(Tokenizer tokenizer, StreamOptions options = {});

  // The text that is certain once `id` has come; often empty. Ids without a token count for nothing.
  std::string push(std::int64_t id);
  // The rest: U+FFFD for a character that was not completed, and what was held back for a stop string. Nothing comes
  // afterwards.
  std::string finish();

  // Which of the stop strings ended the text: the one that was complete first, of several the longest. push() and
  // finish() give nothing from then on.
  std::optional<std::size_t> stop() const { return stop_; }

 private:
  struct Stop {
    std::string text;
    std::vector<std::size_t> shorter;  // [n]: the longest proper beginning of it that ends its first n bytes
    std::size_t matched = 0;           // bytes of it that end the text so far
  };
  void take(std::string_view bytes, bool last);
  void take_character(std::string_view character);

  Tokenizer tokenizer_;
  bool skip_special_;
  std::vector<Stop> stops_;
  std::string bytes_;   // the beginning of a character
  std::string text_;    // not given out yet
  bool first_ = true;   // no token has come
  bool ended_ = false;  // finished, or stopped
  std::size_t strip_;   // how many more characters the decoder takes off the beginning
  std::optional<std::size_t> stop_;
};

}  // namespace lockstep
