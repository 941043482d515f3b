// One text that is being written by a Generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/models/generation/generate.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

namespace detail {
struct GenerationState;
}

// A handle, to be moved; it belongs to one thread at a time, but for cancel(). Dropping it cancels the text, if it has
// not ended: nobody could read it. Its generator may go away before it.
class LOCKSTEP_API Generation {
 public:
  Generation() = default;
  explicit Generation(std::shared_ptr<detail::GenerationState> state) : state_(std::move(state)) {}
  Generation(Generation&&) noexcept = default;
  Generation& operator=(Generation&& other) noexcept;
  ~Generation();

  // The next token, in order; blocks until it is there. Nothing once the text has ended: finish() says how. Behind the
  // last token it throws, once, what the text ended in: TimeoutError at its deadline, Cancelled, Refused when it was
  // dropped, what the model threw. `logprobs`, where it is not null, gets those of the token, or nothing where none
  // were asked for.
  std::optional<std::int64_t> next(TokenLogprobs* logprobs = nullptr);
  // The tokens that next() has not given, all at once. Blocks until the text has ended; throws as next() does.
  Generated get();
  // How it ended; nothing while it has not.
  std::optional<FinishReason> finish() const;
  // Blocks; false when there is neither a token for next() nor the end in that time.
  bool wait(Milliseconds timeout) const;
  // From any thread. Its pages are free before the next call of the model. False when it has ended already.
  bool cancel() const;

 private:
  std::shared_ptr<detail::GenerationState> state_;
};

}  // namespace lockstep
