// What a Generation and its Generator share. Private to the library.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/models/generation/continuous_batch.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

struct GenerationState {
  std::vector<std::int64_t> prompt;  // until it joins the batch
  GenerateOptions options;
  std::function<bool(std::int64_t)> on_token;
  Milliseconds timeout{0};
  Clock::time_point submitted{}, deadline{}, last_token{};
  std::atomic<bool> cancelled = false;  // is to end

  // The rest under `mutex`, which is locked under the generator's at most, never around it.
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::deque<std::int64_t> tokens;    // that nobody has read
  std::list<TokenLogprobs> logprobs;  // of these, where they were asked for
  bool ended = false;
  std::optional<FinishReason> finish;
  std::exception_ptr error;

  void give(std::int64_t token, std::optional<TokenLogprobs> of_token);
  void end(FinishReason how, std::exception_ptr why);
};

}  // namespace lockstep::detail
