// One text while it is written: tokens to characters, up to a stop string.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text.h"

namespace example {

// A token whose log probabilities are wanted.
struct WrittenToken {
  std::int64_t token = 0;
  std::size_t offset = 0;  // where it begins, in characters of what was written
  lockstep::TokenLogprobs logprobs;
};

// What has been written since the last time.
struct Piece {
  std::string text;
  std::vector<WrittenToken> tokens;  // of this text, where log probabilities are wanted
  bool empty() const { return text.empty() && tokens.empty(); }
};

class TextRun {
 public:
  // Begins with `echo`.
  TextRun(const TextBackend& backend, lockstep::Generation generation, std::vector<std::string> stops, std::string echo,
          bool logprobs)
      : backend_(&backend),
        generation_(std::move(generation)),
        decoder_(backend.tokenizer, {.stops = std::move(stops)}),
        echo_(std::move(echo)) {
    if (logprobs) places_.emplace(backend.tokenizer);
  }

  enum class State { waiting, writing, ended };
  // Appends what has been written since, after `moment` at most. Throws what the text ended in.
  State advance(Piece& piece, lockstep::Milliseconds moment) {
    if (!echo_.empty()) {
      piece.text += std::exchange(echo_, {});
      return State::writing;
    }
    const std::size_t before = piece.text.size();
    const State state = read(piece.text, moment);
    given_ += characters(piece.text, before);
    // A token goes with the first character of it; behind a stop string there are none of the text's.
    const bool all = state == State::ended && !decoder_.stop();
    for (; !held_.empty() && (all || held_.front().offset < given_); held_.pop_front())
      piece.tokens.push_back(std::move(held_.front()));
    return state;
  }
  std::int64_t tokens() const { return tokens_; }
  bool ended() const { return finish_reason_ != nullptr; }
  const char* finish_reason() const { return finish_reason_; }  // null until it has ended

 private:
  State read(std::string& text, lockstep::Milliseconds moment) {
    constexpr int kMost = 64;  // tokens at once, of those that wait because the client was slow
    if (!generation_.wait(moment)) return State::waiting;
    for (int i = 0; i < kMost && (i == 0 || generation_.wait(lockstep::Milliseconds(0))); ++i) {
      lockstep::TokenLogprobs logprobs;
      const auto token = generation_.next(&logprobs);
      if (!token) {
        text += decoder_.finish();
        const bool stopped = decoder_.stop() || generation_.finish() == lockstep::FinishReason::stop;
        return end(stopped ? "stop" : "length");
      }
      ++tokens_;
      const auto& ends = backend_->end_tokens;
      if (std::find(ends.begin(), ends.end(), *token) != ends.end()) continue;
      if (places_) {
        held_.push_back({*token, read_, std::move(logprobs)});
        read_ += characters(places_->push(*token), 0);
      }
      text += decoder_.push(*token);
      if (!decoder_.stop()) continue;
      generation_.cancel();
      return end("stop");
    }
    return State::writing;
  }
  State end(const char* reason) {
    finish_reason_ = reason;
    return State::ended;
  }
  // Of UTF-8, behind the first `begin` bytes.
  static std::size_t characters(const std::string& text, std::size_t begin) {
    return static_cast<std::size_t>(
        std::count_if(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(),
                      [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  }

  const TextBackend* backend_;
  lockstep::Generation generation_;
  lockstep::StreamDecoder decoder_;
  std::string echo_;  // until it has been given
  std::int64_t tokens_ = 0;
  const char* finish_reason_ = nullptr;
  // Where log probabilities are wanted: what is read, which may be more than the decoder gives out yet.
  std::optional<lockstep::StreamDecoder> places_;
  std::deque<WrittenToken> held_;     // until their characters are given
  std::size_t read_ = 0, given_ = 0;  // characters
};

}  // namespace example
