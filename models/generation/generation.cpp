#include "lockstep/models/generation/generation.h"

#include <iterator>
#include <utility>

#include "lockstep/models/generation/generation_state.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace detail {

void GenerationState::give(std::int64_t token, std::optional<TokenLogprobs> of_token) {
  std::list<TokenLogprobs> more;
  if (of_token) more.push_back(std::move(*of_token));
  const std::lock_guard lock(mutex);
  tokens.push_back(token);
  logprobs.splice(logprobs.end(), more);
  changed.notify_all();
}

void GenerationState::end(FinishReason how, std::exception_ptr why) {
  const std::lock_guard lock(mutex);
  finish = how;
  error = std::move(why);
  ended = true;
  changed.notify_all();
}

namespace {

GenerationState& valid(const std::shared_ptr<GenerationState>& state) {
  if (!state) throw Error("[Generation] expected a text that was submitted, got an empty handle");
  return *state;
}

// A generator ends texts at their deadlines. This wait has one of its own for a generator that was cut off, as by a
// fork.
template <class Ready>
void await(GenerationState& state, std::unique_lock<std::mutex>& lock, Ready ready) {
  if (state.deadline > Clock::time_point::max() - kDefaultTimeout)
    state.changed.wait(lock, ready);
  else if (!state.changed.wait_until(lock, state.deadline + kDefaultTimeout, ready))
    throw TimeoutError("[Generation] expected the generator to end the text at its deadline, got nothing");
}

// Once: then it belongs to who catches it.
void throw_error(GenerationState& state) {
  if (auto error = std::exchange(state.error, nullptr)) std::rethrow_exception(std::move(error));
}

}  // namespace
}  // namespace detail

Generation& Generation::operator=(Generation&& other) noexcept {
  if (this == &other) return *this;
  cancel();
  state_ = std::move(other.state_);
  return *this;
}
Generation::~Generation() { cancel(); }

std::optional<std::int64_t> Generation::next(TokenLogprobs* logprobs) {
  detail::GenerationState& state = detail::valid(state_);
  std::unique_lock lock(state.mutex);
  detail::await(state, lock, [&] { return state.ended || !state.tokens.empty(); });
  if (!state.tokens.empty()) {
    const std::int64_t token = state.tokens.front();
    state.tokens.pop_front();
    if (logprobs) *logprobs = {};
    if (!state.logprobs.empty()) {
      if (logprobs) *logprobs = std::move(state.logprobs.front());
      state.logprobs.pop_front();
    }
    return token;
  }
  detail::throw_error(state);
  return std::nullopt;
}

Generated Generation::get() {
  detail::GenerationState& state = detail::valid(state_);
  std::unique_lock lock(state.mutex);
  detail::await(state, lock, [&] { return state.ended; });
  detail::throw_error(state);
  Generated result{{state.tokens.begin(), state.tokens.end()},
                   state.finish.value_or(FinishReason::failed),
                   {std::make_move_iterator(state.logprobs.begin()), std::make_move_iterator(state.logprobs.end())}};
  state.tokens.clear();
  state.logprobs.clear();
  return result;
}

std::optional<FinishReason> Generation::finish() const {
  const detail::GenerationState& state = detail::valid(state_);
  const std::lock_guard lock(state.mutex);
  return state.finish;
}

bool Generation::wait(Milliseconds timeout) const {
  const detail::GenerationState& state = detail::valid(state_);
  std::unique_lock lock(state.mutex);
  const auto ready = [&] { return state.ended || !state.tokens.empty(); };
  const Deadline deadline = Deadline::after(timeout);
  if (!deadline.never()) return state.changed.wait_until(lock, deadline.time(), ready);
  state.changed.wait(lock, ready);
  return true;
}

bool Generation::cancel() const {
  if (!state_) return false;
  state_->cancelled = true;
  const std::lock_guard lock(state_->mutex);
  return !state_->ended;
}

}  // namespace lockstep
