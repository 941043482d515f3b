// One rank of an NCCL communicator: NCCL's object, and what is on the way on the device. Private to the library.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_library.h"
#include "lockstep/parallel/comm/nccl/nccl_out_of_band.h"
#include "lockstep/runtime/stream/watchdog.h"

namespace lockstep::nccl {

class Rank final : public detail::InFlight, public std::enable_shared_from_this<Rank> {
 public:
  using OnBroken = std::function<void(const CommError&)>;

  // `broken` is called once, by the thread that finds the first failure, until close().
  // `blocking`: NCCL's calls return when they are done.
  Rank(OutOfBand oob, Device device, bool blocking, OnBroken broken);

  // Makes NCCL's communicator; blocks until all ranks have come.
  void connect(Milliseconds timeout);
  // Enqueues the collective, or the sends and receives of a batch, when the others of this process have come to it.
  void launch(std::span<const Collective> calls, const Stream& stream);
  // Enqueues calls[r] for ranks[r] on streams[r], all of them from this thread, in one of NCCL's groups: for ranks of
  // one process, all there are, that nobody else uses. When it throws, the communicators of all are broken.
  static void launch_together(std::span<const std::shared_ptr<Rank>> ranks,
                              std::span<const std::vector<Collective>> calls, std::span<const Stream> streams);
  // Puts them into the graph that this thread captures; they are enqueued when it is replayed.
  void record(std::span<const Collective> calls, const Stream& stream);
  // "" when it can, else what there is instead.
  std::string why_not_recorded() const;
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine);
  // Compares with the other ranks through the store.
  void check_agreement(const Collective& collective);
  void check_pairs(std::span<const Collective> transfers);
  // Nobody uses the object any more. Gives NCCL's communicator back when what is on the way is through, in a thread of
  // its own.
  void close() noexcept;

  void fail(const CommError& error) noexcept;
  std::optional<CommError> failure();
  // Throws the failure if there is one.
  void check();
  // After a failure: NCCL has let go of the device and its streams, or hangs.
  void wait_for_abort();
  // Whoever uses the communicator knows of the failure: host waits need not throw it any more.
  void mark_reported() { reported_.store(true, std::memory_order_release); }
  // What the thread that uses the communicator is in, while it is: errors that others have found name it.
  void enter(Collective::Kind kind) { in_call_ = static_cast<int>(kind); }
  void leave() { in_call_ = kNoCall; }
  OutOfBand& oob() { return oob_; }

  void poll() noexcept override;
  void break_off(const CommError& why, const std::string& of) noexcept override;
  void tell(Device waiting) override;

 private:
  struct PendingWork {
    Fingerprint fingerprint;
    std::vector<int> peers = {};  // of sends and receives, in their order
    Event done;
    Clock::time_point deadline;
    Milliseconds timeout;
  };

  void meet_locals(std::span<const Collective> calls);
  template <class Body>
  static Result in_group(const Library& nccl, Body&& body);
  static void issue_together(std::span<const std::shared_ptr<Rank>> ranks,
                             std::span<const std::vector<Collective>> calls, std::span<const Stream> streams);
  struct Target {  // of a call
    Comm comm;
    NativeStream stream;
  };
  void issue_and_wait(std::span<const Collective> calls, const Stream& stream, const PendingWork& entry,
                      Deadline deadline);
  Result issue_batch(std::span<const Collective> calls, const Target& to);
  [[noreturn]] void differ(const Collective& mine, int rank, const std::string& theirs);
  Result issue(const Collective& collective, const Target& to);
  Result issue_group(const Collective& collective, const Target& to);
  Result init_in_a_thread(const std::function<Result(Comm&)>& init, const char* what, Deadline deadline,
                          Milliseconds timeout);
  void wait_until_ready(std::unique_lock<std::mutex>& lock, const char* what, Deadline deadline, Milliseconds timeout);
  void abort_unowned(Comm comm) noexcept;
  void check_while_waiting(const char* what, Deadline deadline, Milliseconds timeout, Clock::time_point& next_check);
  class InGraph;
  void enter_process() const;
  bool alone_in_process() const;
  void leave_process() const noexcept;
  void begin_replay();
  void end_replay(const InGraph& graph, const Stream& stream) noexcept;
  static std::string not_ready(Milliseconds timeout);
  std::string explain(Result result) const;
  bool retire() noexcept;  // what is through; true when nothing is left
  bool is_through(std::uint64_t number);
  void agree_on_size(Milliseconds timeout, Deadline deadline, const std::function<void()>& check_health);
  void check_health();
  void check_nccl();
  void check_store();
  void check_timeout();
  void check_issue();
  bool in_blocking_call();
  struct State;
  std::optional<State> state_of(int rank);
  void publish_state(std::int64_t request);
  void publish_state_if_asked();
  bool others_asked();
  int silent_rank();
  int find_silent_rank();
  CommError blame(const std::string& collective, int silent, const std::string& text) const;
  CommError explain_exchange(const Collective& collective, const std::string& name);
  CommError explain_timeout(const Fingerprint& oldest, Milliseconds timeout);
  CommError explain_pair_timeout(const Fingerprint& oldest, Milliseconds timeout, const std::vector<int>& peers);
  CommError in_own_terms(const CommError& error);
  std::optional<CommError> failure_of_others();
  void fail(const CommError& error, bool break_off_others) noexcept;
  void abort_in_a_thread() noexcept;
  void finish_pending() noexcept;
  void wait_for_graphs() noexcept;
  void give_back() noexcept;

  OutOfBand oob_;
  const Device device_;
  const bool blocking_;
  const Library& nccl_;

  std::string id_;                               // NCCL's, of the communicator
  std::shared_ptr<detail::MeetingPlace> place_;  // of the ranks in this process
  std::vector<int> member_of_rank_;              // by rank; -1: in another process
  std::uint64_t meetings_ = 0, last_number_ = 0;

  // Graphs have collectives of this rank: NCCL ends its communicator no sooner than the last of them.
  std::atomic<int> graphs_{0};
  InGraph* recording_ = nullptr;            // of the capture in progress
  std::atomic<std::uint64_t> replayed_{0};  // collectives in replays, which the communicator has not numbered

  std::mutex owner_mutex_;
  OnBroken broken_;

  // Of NCCL's communicator: one thread at a time. Not held by a thread that is in a call that blocks: others may abort
  // the communicator then, which ends the call, and must not do anything else with it.
  std::mutex use_;
  Comm comm_ = nullptr;

  std::mutex polling_;
  Clock::time_point next_store_check_{};
  std::optional<Clock::time_point> states_requested_at_;  // of the others, because one is late or gone
  std::optional<std::uint64_t> asked_for_;                // the number of what is late, where it is on the device
  std::atomic<std::int64_t> request_{0};  // the number of that request, and of the last that is answered
  std::atomic<std::int64_t> answered_{0};

  std::mutex state_;
  std::condition_variable changed_;
  std::deque<PendingWork> pending_;
  struct Issuing {
    Fingerprint fingerprint;
    Clock::time_point deadline;
    Milliseconds timeout;
  };
  struct BlockingCall;
  std::optional<Issuing> issuing_;  // the call that blocks, if there is one
  std::uint64_t through_ = 0;       // how many are not pending any more: the number of the oldest
  std::optional<Fingerprint> last_enqueued_;
  std::optional<CommError> failure_;
  Clock::time_point give_up_{};  // on the abort
  std::atomic<bool> failed_{false}, reported_{true}, owner_knows_{false}, aborted_{false}, closed_{false};
  static constexpr int kNoCall = -1;
  std::atomic<int> in_call_{kNoCall};
};

// What `body` gives to `add` goes on at once.
template <class Body>
Result Rank::in_group(const Library& nccl, Body&& body) {
  Result first = nccl.group_start();
  const auto fine = [&] { return first == kSuccess || first == kInProgress; };
  body([&](auto&& call) {
    if (fine()) first = call();
  });
  const Result end = nccl.group_end();
  return fine() ? end : first;
}

}  // namespace lockstep::nccl
