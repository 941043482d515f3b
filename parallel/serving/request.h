// One request to a pool of replicas, without the types of its inputs and its answer. Private to the library.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

class ServingPool;

enum class Outcome : std::uint8_t { answered, failed, cancelled, late, dropped };
inline constexpr int kOutcomes = 5;

// Is settled once: by the replica that has the answer, by who cancels it, or at its deadline, whoever comes first.
class LOCKSTEP_API ServingRequest : public std::enable_shared_from_this<ServingRequest> {
 public:
  using List = std::list<std::shared_ptr<ServingRequest>>;

  ServingRequest();
  ServingRequest(const ServingRequest&) = delete;
  ServingRequest& operator=(const ServingRequest&) = delete;
  virtual ~ServingRequest();

  // What the submitter says, before the pool has it.
  std::string key;           // requests of equal keys can be computed together
  std::int64_t samples = 1;  // in dimension 0 of its tensors
  bool alone = false;        // no other may be computed with it: its tensors may have any sizes
  int priority = 0;
  Milliseconds timeout{0};
  std::vector<Event> written;  // after which its tensors on devices may be read

  // The pool's, under its mutex.
  std::uint64_t number = 0;  // in order of submitting
  Clock::time_point submitted{}, deadline{};
  List::iterator place{};  // in the queue, while `queued`
  bool queued = false;
  bool moved = false;    // from a replica that was taken out, which happens once
  bool counted = false;  // among those that have ended
  int computing = 0;     // replicas that compute it
  std::weak_ptr<ServingPool> pool;

  bool settled() const { return state_.load(std::memory_order_acquire) != State::open; }
  // True for the one who settles it: who then says how, and publishes it.
  bool claim() {
    State open = State::open;
    return state_.compare_exchange_strong(open, State::claimed, std::memory_order_acq_rel);
  }
  void fail(std::exception_ptr error) noexcept { error_ = std::move(error); }
  // Wakes who waits, then calls back.
  void publish() noexcept;

  // False when that has come. Blocks.
  bool ended_by(Deadline until) const;
  bool ready() const { return state_.load(std::memory_order_acquire) == State::published; }
  // Once it is ready, for its one receiver: what it ended in then belongs to who catches it, and no thread of the pool
  // is the last to hold, and to destroy, what a receiver looks at.
  std::exception_ptr take_error() { return std::exchange(error_, nullptr); }

  // Nobody will compute it any more.
  virtual void drop_inputs() noexcept = 0;

 protected:
  virtual void call_back() noexcept = 0;

 private:
  enum class State : std::uint8_t { open, claimed, published };
  std::atomic<State> state_{State::open};
  std::exception_ptr error_;
  mutable std::mutex mutex_;
  mutable std::condition_variable published_;
};

}  // namespace lockstep::detail
