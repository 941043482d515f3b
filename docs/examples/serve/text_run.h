// One text while it is written: tokens to characters, up to a stop string.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "text.h"

namespace example {

class TextRun {
 public:
  TextRun(const TextBackend& backend, lockstep::Generation generation, std::vector<std::string> stops)
      : backend_(&backend),
        generation_(std::move(generation)),
        decoder_(backend.tokenizer, {.stops = std::move(stops)}) {}

  enum class State { waiting, writing, ended };
  // Appends what has been written since, after `moment` at most. Throws what the text ended in.
  State advance(std::string& text, lockstep::Milliseconds moment) {
    constexpr int kMost = 64;  // tokens at once, of those that wait because the client was slow
    if (!generation_.wait(moment)) return State::waiting;
    for (int i = 0; i < kMost && (i == 0 || generation_.wait(lockstep::Milliseconds(0))); ++i) {
      const auto token = generation_.next();
      if (!token) {
        text += decoder_.finish();
        const bool stopped = decoder_.stop() || generation_.finish() == lockstep::FinishReason::stop;
        return end(stopped ? "stop" : "length");
      }
      ++tokens_;
      const auto& ends = backend_->end_tokens;
      if (std::find(ends.begin(), ends.end(), *token) != ends.end()) continue;
      text += decoder_.push(*token);
      if (!decoder_.stop()) continue;
      generation_.cancel();
      return end("stop");
    }
    return State::writing;
  }
  std::int64_t tokens() const { return tokens_; }
  bool ended() const { return finish_reason_ != nullptr; }
  const char* finish_reason() const { return finish_reason_; }  // null until it has ended

 private:
  State end(const char* reason) {
    finish_reason_ = reason;
    return State::ended;
  }
  const TextBackend* backend_;
  lockstep::Generation generation_;
  lockstep::StreamDecoder decoder_;
  std::int64_t tokens_ = 0;
  const char* finish_reason_ = nullptr;
};

}  // namespace example
