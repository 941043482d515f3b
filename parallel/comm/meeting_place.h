// Where ranks that are threads of one process meet: they wait for each other and exchange what they need to know.
// Private to the library.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// What one who comes brings to a meeting.
struct Contribution {
  Fingerprint fingerprint;
  const void* input = nullptr;
  void* output = nullptr;
  std::shared_ptr<const Event> event;  // after which the memory may be used
  std::string message;
  std::string error;  // what went wrong since the last meeting
};

// Which meeting, of whom. All together count their meetings, and sender and receiver of each pair theirs.
struct Meeting {
  int sender = -1, receiver = -1;  // -1: everybody
  std::uint64_t number = 0;
  // The second and third meeting of one collective: whoever came to the first comes to these, whatever has happened.
  int phase = 0;
  friend auto operator<=>(const Meeting&, const Meeting&) = default;  // NOLINT(modernize-use-nullptr): compares with 0
};

// Members have numbers from 0; `ranks` says which rank of the communicator each is, for errors.
class MeetingPlace {
 public:
  explicit MeetingPlace(std::vector<int> ranks);

  int size() const { return static_cast<int>(ranks_.size()); }

  // Blocks until all who belong to the meeting have come; returns what they have brought, by member. Throws the first
  // failure, which is a CommError for members that are missing after `timeout` or have left, to everybody who waits.
  std::vector<Contribution> meet(const Meeting& meeting, int member, Contribution contribution, Milliseconds timeout);
  // The two halves of meet. Who comes to several meetings at once waits for none before it has come to all of them.
  // `come` throws the first failure, and has come to none then; every other call must be followed by `collect`.
  struct Arrival {
    Meeting meeting;
    Contribution contribution;
  };
  void come(std::vector<Arrival>&& arrivals, int member);
  std::vector<Contribution> collect(const Meeting& meeting, const char* name, Milliseconds timeout, Deadline deadline);
  // Which of the meetings `collect` need not wait for, because all have come or somebody will not; blocks until there
  // is one, or the deadline is over.
  std::size_t wait_for_any(const std::vector<Meeting>& meetings, Deadline deadline);
  // What all must agree on: CommError that names two ranks that do not, the same for all of them.
  void check_agreement(const Meeting& meeting, const std::vector<Contribution>& contributions) const;

  // The first failure stays. Wakes everybody who waits, but in later phases.
  void fail(const CommError& error);
  // The member does not come any more.
  void leave(int member);
  // Those that have left.
  std::vector<int> gone();

 private:
  struct Table {
    std::vector<Contribution> contributions;
    std::vector<bool> present;
    int missing = 0;
    int here = 0;  // that have not taken what they came for
  };
  std::optional<CommError> why_not(const Table& table, const char* name, bool open) const;
  std::string describe_missing(const Table& table) const;

  const std::vector<int> ranks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Meeting, Table> meetings_;
  std::vector<bool> left_;
  std::vector<std::optional<Fingerprint>> last_;  // what each came for last
  std::optional<CommError> failure_;
};

// What no other process has.
const std::string& process_token();
// For tests: the thread poses as a process of its own.
inline constinit thread_local const std::string* process_token_override = nullptr;

}  // namespace lockstep::detail
