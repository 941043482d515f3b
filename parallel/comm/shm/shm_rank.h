// What a rank of a shared-memory group is made of, apart from its communicator object: tasks on streams outlive that.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/shm/channel.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"

namespace lockstep::detail {

// The ranks that share a board, as this process sees them.
class SharedGroup : public std::enable_shared_from_this<SharedGroup> {
 public:
  // `share_devices`: ranks that are threads of this process work on one device, with all that belongs to it. See
  // SharedMember::announce.
  explicit SharedGroup(std::shared_ptr<Board> board, bool share_devices = false)
      : board_(std::move(board)), share_devices_(share_devices) {}
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;
  virtual ~SharedGroup() = default;

  Board& board() { return *board_; }
  bool share_devices() const { return share_devices_; }
  // The group that `members` of this one make of their own; see Communicator::make_split.
  virtual std::shared_ptr<SharedGroup> split(const std::vector<int>& members, int index, const std::string& id,
                                             Milliseconds timeout) = 0;

 private:
  std::shared_ptr<Board> board_;
  const bool share_devices_;
};

// A rank. When the communicator and its tasks are done with it, the rank has left the group.
class SharedMember {
 public:
  SharedMember(std::shared_ptr<SharedGroup> group, int rank, SharedMemoryCommunicator& owner);
  SharedMember(const SharedMember&) = delete;
  SharedMember& operator=(const SharedMember&) = delete;
  ~SharedMember();

  Board& board() { return group_->board(); }
  Lane& host_lane() { return host_lane_; }
  // Any collective but an exchange; blocks. Tells the owner of a failure.
  void perform(const Collective& collective);
  // To be called by the host thread before it puts a collective on a stream or makes an exchange.
  //
  // Where ranks share a device whose streams run by themselves, it waits until the host threads of all have come to the
  // collective. Otherwise what one rank enqueues after its call could go before what another enqueues before its own,
  // on the copy stream that they share, or in a wait for the whole device, and each would wait for the other.
  void announce(const Collective& collective, const Stream* stream = nullptr);
  // The collective will not be performed: the work before it failed.
  void skip(const Collective& collective) noexcept;
  void disown();

 private:
  void tell_owner(const CommError& error);
  void count_call(const Collective& collective);
  Lane& lane(const Collective& collective);

  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  Lane stream_lane_, host_lane_;
  std::deque<Lane> to_, from_;  // by rank
  std::mutex mutex_;
  SharedMemoryCommunicator* owner_;  // null once it is gone
};

}  // namespace lockstep::detail
