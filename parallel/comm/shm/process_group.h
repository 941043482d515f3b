// Ranks that are processes of one machine: how they come to share a control block.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/ranks/launcher_protocol.h"
#include "lockstep/parallel/comm/shm/process_monitor.h"
#include "lockstep/parallel/comm/shm/shm_rank.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::detail {

class ProcessGroup final : public ShmGroup {
 public:
  // Rank 0 makes the memory and listens on a socket whose random name it writes to the store, under "<name>/socket";
  // the others connect and are handed the memory. Both sides look at the other's user. Blocks until all have come, or
  // throws CommError, naming who is missing, on every rank that has.
  // `share_devices`: as of the group that it is split from. `ended`: who is not waited for any more, if that is known.
  static std::shared_ptr<ShmGroup> make(std::shared_ptr<Store> store, std::string name, int rank, int size,
                                        Milliseconds timeout, bool share_devices = false,
                                        const EndedRanks& ended = nullptr);

  std::shared_ptr<ShmGroup> split(const std::vector<int>& members, int index, const std::string& id,
                                  Milliseconds timeout) override {
    const auto ended_members = [this, &members] {
      std::vector<EndedRank> ended;
      for (std::size_t m = 0; m < members.size(); ++m)
        if (const auto presence = control().presence(members[m]); presence != ControlBlock::Presence::here)
          ended.push_back({static_cast<int>(m), presence == ControlBlock::Presence::left ? "left" : "died"});
      return ended;
    };
    return make(store_, name_ + "/" + id, index, static_cast<int>(members.size()), timeout, share_devices(),
                ended_members);
  }

  RollCall roll_call() override {
    auto self = std::static_pointer_cast<ProcessGroup>(shared_from_this());
    return {.store = store_ ? store_ : make_local_store(), .prefix = id_, .gone = [self] { return self->gone(); }};
  }

  // `id`: no other group of the store has it, whatever their names.
  ProcessGroup(const std::shared_ptr<ControlBlock>& control, std::vector<ProcessMonitor::Watched> watched,
               std::shared_ptr<Store> store, std::string name, std::string id, bool share_devices)
      : ShmGroup(control, share_devices),
        store_(std::move(store)),
        name_(std::move(name)),
        id_(std::move(id)),
        monitor_(control, std::move(watched)) {}

 private:
  std::shared_ptr<Store> store_;
  std::string name_, id_;
  ProcessMonitor monitor_;
};

// For tests: what this thread's ranks say of their build instead of what it is. Null: nothing.
extern constinit thread_local const std::string* build_override;
// How long this thread's rank 0 waits for those who come when the group has failed, to tell them.
extern constinit thread_local Milliseconds grace_of_failed_group;

}  // namespace lockstep::detail
