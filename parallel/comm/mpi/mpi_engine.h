// The one thread that talks to MPI, and what it does for communicators: messages between their members, with deadlines.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

// Messages between two members are received in the order in which they were sent, for each of these by itself.
enum class MpiTag { collective, exchange, pair, pair_answer, split, control, count };
constexpr int kTagsPerContext = 8;  // MPI tags that a communicator may use: the context decides which
static_assert(static_cast<int>(MpiTag::count) <= kTagsPerContext);

struct MpiFailure {
  int rank = 0;  // a member
  std::string text;
};

// How many of its collectives, and of its exchanges, a member has behind it. Who fails after that has sent all that
// the others need to end these too.
struct MpiProgress {
  std::uint64_t collectives = 0, exchanges = 0;
  std::uint64_t of(MpiTag tag) const {
    return tag == MpiTag::collective ? collectives : tag == MpiTag::exchange || tag == MpiTag::split ? exchanges : 0;
  }
};

// A communicator, for the engine. What is not const belongs to the engine's lock.
struct MpiGroup {
  const std::int64_t context;      // the same for all members, and no other communicator's of theirs
  const std::vector<int> members;  // their ranks in MPI_COMM_WORLD
  const int index;                 // this process among them
  MpiProgress done;
  std::optional<MpiFailure> failure;
  bool reports = false;    // it is for this member to tell the others of the failure
  MpiProgress still;       // after a failure: what may be ended nevertheless
  std::vector<bool> gone;  // has left, or failed

  bool stopped(MpiTag tag, std::uint64_t sequence) const { return failure && sequence > still.of(tag); }
};

struct MpiMessage {
  bool send = false;
  int member = 0;
  MpiTag tag = MpiTag::collective;
  void* data = nullptr;  // only read when it is sent
  std::size_t bytes = 0;
};

class MpiEngine {
 public:
  // The process's engine. The first call starts it, and MPI; all ranks must make it.
  static MpiEngine& instance(Milliseconds timeout);

  int rank() const { return rank_; }  // in MPI_COMM_WORLD
  int size() const { return size_; }

  // `creator`: a rank of MPI_COMM_WORLD, or size() for communicators of all ranks. Its `number`s differ.
  std::int64_t context(int creator, std::int64_t number) const { return number * (size_ + 1) + creator; }
  std::int64_t next_number();  // for communicators that this process creates
  std::shared_ptr<MpiGroup> open(std::int64_t context, std::vector<int> members, int index);
  // This member has left, which the others are told; the group is not used any more.
  void close(std::shared_ptr<MpiGroup> group);
  // Ends all transfers of the group and tells the others; the first failure stays. `also_later`: there may have been
  // one before, which has not ended all transfers.
  void fail(const std::shared_ptr<MpiGroup>& group, const MpiFailure& failure, bool also_later);
  std::optional<MpiFailure> failure(const MpiGroup& group) const;
  // From these nothing has come before a deadline: the end of the process does not wait for them for long.
  void silent(const MpiGroup& group, const std::vector<int>& members);

  enum class Outcome { done, failed, left, late };
  struct Result {
    Outcome outcome = Outcome::done;
    std::vector<int> members;  // that have left, or from whom nothing has come
  };
  // Carries out the messages at the same time and blocks until they are done. When it returns nothing is written any
  // more to what was to be received; what was to be sent may still be read, if somebody asks for it.
  // All messages are of one tag (or a pair's two), for its `sequence`-th collective.
  Result transfer(const std::shared_ptr<MpiGroup>& group, std::span<const MpiMessage> messages, std::uint64_t sequence,
                  Deadline deadline);

  // Waits until it is the `sequence`-th one's turn, after `turn` others; not (false) when the group has failed before
  // or the deadline has passed.
  bool wait_for_turn(const MpiGroup& group, MpiTag tag, const std::uint64_t& turn, std::uint64_t sequence,
                     Deadline deadline);
  void next_turn(std::uint64_t& turn);

 private:
  class Loop;  // what belongs to the thread, and knows MPI
  struct Batch;
  MpiEngine() = default;
  void start(Milliseconds timeout);
  void stop();

  int rank_ = 0, size_ = 1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for those that wait for the engine
  std::condition_variable wanted_;   // for the engine
  std::vector<Batch*> batches_;
  struct Command {
    enum class Kind { open, close, fail, stop } kind;
    std::shared_ptr<MpiGroup> group;
  };
  std::vector<Command> commands_;
  std::int64_t numbers_ = 0;
  bool started_ = false, stopped_ = false, failed_ = false;
  std::set<int> silent_;              // ranks of MPI_COMM_WORLD
  std::shared_ptr<MpiGroup> ending_;  // of all processes: who leaves it has nothing more to do
  std::string problem_;               // why it could not start
};

}  // namespace lockstep::detail
