// One rank of an NCCL communicator: NCCL's object, and what is on the way on the device. Private to the library.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_library.h"
#include "lockstep/parallel/comm/nccl/nccl_out_of_band.h"
#include "lockstep/runtime/stream/in_flight.h"

namespace lockstep::nccl {

class Rank final : public detail::InFlight, public std::enable_shared_from_this<Rank> {
 public:
  using Broken = std::function<void(const CommError&)>;

  // `broken` is called once, by the thread that finds the first failure, until close().
  Rank(Board board, Device device, Broken broken);

  // Makes NCCL's communicator; blocks until all ranks have come.
  void connect(Milliseconds timeout);
  // Enqueues the collective, when the others of this process have come to it.
  void launch(const Collective& collective, Stream& stream);
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine);
  // Compares with the other ranks through the store.
  void check_agreement(const Collective& collective);
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
  void say_told() { told_.store(true, std::memory_order_release); }
  Board& board() { return board_; }

  void poll() noexcept override;
  void break_off(const CommError& why) noexcept override;
  void tell(Device waiting) override;

 private:
  struct OnTheWay {
    Fingerprint fingerprint;
    Event done;
    Clock::time_point deadline;
    Milliseconds timeout;
  };

  void meet_locals(const Collective& collective);
  void call(const Collective& collective, void* stream);
  Result issue(const Collective& collective, void* stream);
  Result issue_group(const Collective& collective, void* stream);
  void wait_until_ready(std::unique_lock<std::mutex>& lock, const char* what, Deadline deadline, Milliseconds timeout);
  std::string explain(Result result) const;
  bool retire() noexcept;  // what is through; true when nothing is left
  void look();
  void look_at_nccl();
  void look_at_store();
  void look_at_clock();
  void publish_state();
  CommError explain_lateness(const Fingerprint& oldest, Milliseconds timeout);
  void abort_in_a_thread() noexcept;
  void give_back() noexcept;

  Board board_;
  const Device device_;
  const Library& nccl_;

  std::shared_ptr<detail::MeetingPlace> place_;  // of the ranks in this process
  std::vector<int> member_of_rank_;              // by rank; -1: in another process
  std::uint64_t meetings_ = 0, last_number_ = 0;

  std::mutex owner_mutex_;
  Broken broken_;

  std::mutex use_;  // of NCCL's communicator: one thread at a time
  Comm comm_ = nullptr;

  std::mutex looking_;
  Clock::time_point next_look_at_store_{};
  std::optional<Clock::time_point> asked_where_;  // the others are, because this one is late
  bool has_said_where_ = false;                   // it is

  std::mutex state_;
  std::condition_variable changed_;
  std::deque<OnTheWay> on_the_way_;
  std::optional<Fingerprint> last_enqueued_;
  std::optional<CommError> failure_;
  Clock::time_point give_up_{};  // on the abort
  std::atomic<bool> failed_{false}, told_{true}, aborted_{false}, closed_{false};
};

}  // namespace lockstep::nccl
