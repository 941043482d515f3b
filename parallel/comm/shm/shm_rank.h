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

// The ranks that share a control block, as this process sees them.
class ShmGroup : public std::enable_shared_from_this<ShmGroup> {
 public:
  // `share_devices`: ranks that are threads of this process work on one device, with all that belongs to it. See
  // ShmRank::announce.
  explicit ShmGroup(std::shared_ptr<ControlBlock> control, bool share_devices = false)
      : control_(std::move(control)), share_devices_(share_devices) {}
  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;
  virtual ~ShmGroup() = default;

  ControlBlock& control() { return *control_; }
  bool share_devices() const { return share_devices_; }
  // The group that `members` of this one make of their own; see Communicator::make_split.
  virtual std::shared_ptr<ShmGroup> split(const std::vector<int>& members, int index, const std::string& id,
                                          Milliseconds timeout) = 0;
  // Where those that are left meet when the group is broken: a store, and keys that no other group has.
  virtual RollCall roll_call() = 0;

 protected:
  std::vector<int> gone() const {
    std::vector<int> ranks;
    for (int r = 0; r < control_->ranks(); ++r)
      if (control_->presence(r) != ControlBlock::Presence::here) ranks.push_back(r);
    return ranks;
  }

 private:
  std::shared_ptr<ControlBlock> control_;
  const bool share_devices_;
};

// A rank. When the communicator and its tasks are done with it, the rank has left the group.
class ShmRank {
 public:
  ShmRank(std::shared_ptr<ShmGroup> group, int rank, SharedMemoryCommunicator& owner);
  ShmRank(const ShmRank&) = delete;
  ShmRank& operator=(const ShmRank&) = delete;
  ~ShmRank();

  ControlBlock& control() { return group_->control(); }
  Channel& host_channel() { return host_channel_; }
  // Any collective but an exchange, or a batch of sends and receives; blocks. Tells the owner of a failure.
  void perform(const Collective& collective);
  void perform(const std::vector<Collective>& transfers);
  // To be called by the host thread before it puts a collective on a stream or makes an exchange.
  //
  // Where ranks share a device whose streams run by themselves, it waits until the host threads of all have come to the
  // collective. Otherwise what one rank enqueues after its call could go before what another enqueues before its own,
  // on the copy stream that they share, or in a wait for the whole device, and each would wait for the other.
  void announce(const Collective& collective, const Stream& stream = {});
  void announce(const std::vector<Collective>& transfers, const Stream& stream);
  // The collective will not be performed: the work before it failed.
  void skip(const Collective& collective) noexcept;
  void skip(const std::vector<Collective>& transfers) noexcept { skip(transfers[0]); }
  void disown();

 private:
  void notify_owner(const CommError& error);
  void count_call(const Collective& collective);
  Channel& channel(const Collective& collective);

  const std::shared_ptr<ShmGroup> group_;
  const int rank_;
  Channel stream_channel_, host_channel_;
  std::deque<Channel> to_, from_;  // by rank
  std::mutex mutex_;
  SharedMemoryCommunicator* owner_;  // null once it is gone
};

}  // namespace lockstep::detail
