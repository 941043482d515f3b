// The answer to a request, which comes later.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/parallel/serving/request.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

namespace detail {
template <class R>
struct AnswerState : ServingRequest {
  std::optional<R> value;
};
LOCKSTEP_API bool cancel_request(ServingRequest& request);
// Blocks until the request has ended; throws what it ended in.
LOCKSTEP_API void await_answer(ServingRequest* request);
LOCKSTEP_API void receive(const Tensor& tensor);
}  // namespace detail

// Cancels a request, from any thread.
class LOCKSTEP_API Canceller {
 public:
  Canceller() = default;
  explicit Canceller(std::weak_ptr<detail::ServingRequest> request) : request_(std::move(request)) {}
  bool operator()() const;  // as Answer::cancel

 private:
  std::weak_ptr<detail::ServingRequest> request_;
};

// A handle, to be moved; it belongs to one thread at a time. Dropping it ends nothing: the request is computed. Its
// pool may go away before it.
template <class R>
class Answer {
 public:
  Answer() = default;
  explicit Answer(std::shared_ptr<detail::AnswerState<R>> state) : state_(std::move(state)) {}
  Answer(Answer&&) noexcept = default;
  Answer& operator=(Answer&&) noexcept = default;

  // Of a request, and not fetched yet.
  bool valid() const { return state_ != nullptr; }
  // It has ended: get() does not block.
  bool ready() const { return state_ && state_->ready(); }
  // Blocks; false when the request has not ended in that time.
  bool wait(Milliseconds timeout) const { return state_ && state_->ended_by(Deadline::after(timeout)); }
  // Blocks until the request has ended, which it has at its deadline. The answer, once; tensors on other devices than
  // cpu are usable on the caller's current streams. Throws what computing it threw; TimeoutError at the deadline;
  // Cancelled; Refused when it was dropped; DeviceError when no replica was left; Error for a handle of no request.
  R get() {
    const auto state = std::exchange(state_, nullptr);
    detail::await_answer(state.get());
    R value = std::move(*state->value);
    for_each_tensor(value, [](const Tensor& tensor) { detail::receive(tensor); });
    return value;
  }
  // Ends the request in Cancelled, whether it waits or is computed: a network stops before its next module when nobody
  // waits for its batch any more. False when it has ended already.
  bool cancel() const { return state_ && detail::cancel_request(*state_); }
  // For another thread than the one that waits in get().
  Canceller canceller() const { return Canceller(state_); }

 private:
  std::shared_ptr<detail::AnswerState<R>> state_;
};

}  // namespace lockstep
