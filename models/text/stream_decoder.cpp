#include "lockstep/models/text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "lockstep/models/text/tokenizer_parts.h"
#include "lockstep/models/text/unicode.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

StreamDecoder::StreamDecoder(Tokenizer tokenizer, StreamOptions options)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(options.skip_special),
      strip_(tokenizer_.parts_->decoder.strip_count) {
  for (std::string& text : options.stops) {
    LOCKSTEP_CHECK(!text.empty() && text::is_utf8(text),
                   "[StreamDecoder] expected stop strings of UTF-8 that are not empty, got one of ", text.size(),
                   " bytes");
    Stop stop{std::move(text), {}};
    stop.shorter.assign(stop.text.size() + 1, 0);
    for (std::size_t n = 2, length = 0; n <= stop.text.size(); ++n) {
      while (length > 0 && stop.text[length] != stop.text[n - 1]) length = stop.shorter[length];
      if (stop.text[length] == stop.text[n - 1]) ++length;
      stop.shorter[n] = length;
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StreamDecoder::push(std::int64_t id) {
  const auto& parts = *tokenizer_.parts_;
  const auto* token = parts.token(id);
  if (ended_ || token == nullptr || (token->special && skip_special_)) return "";
  if (!first_ && parts.decoder.spaces) take(" ", false);
  take(first_ ? text::token_text(parts.decoder, token->shown, true).bytes : token->text.bytes, false);
  first_ = false;

  if (ended_) return std::exchange(text_, "");
  std::size_t held = 0;
  for (const Stop& stop : stops_) held = std::max(held, stop.matched);
  std::string out = text_.substr(0, text_.size() - held);
  text_.erase(0, out.size());
  return out;
}

std::string StreamDecoder::finish() {
  take("", true);
  ended_ = true;
  return std::exchange(text_, "");
}

void StreamDecoder::take(std::string_view bytes, bool last) {
  bytes_ += bytes;
  std::size_t at = 0;
  while (at < bytes_.size() && !ended_) {
    const text::Character character = text::first_character(std::string_view(bytes_).substr(at));
    if (character.state == text::Character::cut_off && !last) break;
    if (character.state == text::Character::whole) {
      take_character(std::string_view(bytes_).substr(at, character.bytes));
    } else {
      const std::size_t times = tokenizer_.parts_->decoder.replaces_each_byte() ? character.bytes : 1;
      for (std::size_t i = 0; i < times && !ended_; ++i) take_character("\uFFFD");
    }
    at += character.bytes;
  }
  bytes_.erase(0, at);
}

void StreamDecoder::take_character(std::string_view character) {
  if (strip_ > 0 && character == tokenizer_.parts_->decoder.stripped) {
    --strip_;
    return;
  }
  strip_ = 0;
  for (const char c : character) {
    text_ += c;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.shorter[stop.matched];
      if (stop.text[stop.matched] == c) ++stop.matched;
    }
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      const Stop& stop = stops_[i];
      if (stop.matched < stop.text.size() || stop.text.size() <= longest) continue;
      longest = stop.text.size();
      stop_ = i;
    }
    if (!stop_) continue;
    text_.resize(text_.size() - longest);
    ended_ = true;
    return;
  }
}

}  // namespace lockstep
