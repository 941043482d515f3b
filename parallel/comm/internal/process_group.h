// Ranks that are processes of one machine: how they come to share a board.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/internal/peer_watch.h"
#include "lockstep/parallel/comm/internal/shared_member.h"
#include "lockstep/parallel/comm/store.h"

namespace lockstep::detail {

class ProcessGroup final : public SharedGroup {
 public:
  // Rank 0 makes the memory and listens on a socket whose random name it writes to the store, under "<name>/socket";
  // the others connect and are handed the memory. Both sides look at the other's user. Blocks until all have come, or
  // throws CommError, naming who is missing, on every rank that has.
  // `share_devices`: as of the group that it is split from.
  static std::shared_ptr<SharedGroup> make(std::shared_ptr<Store> store, std::string name, int rank, int size,
                                           Milliseconds timeout, bool share_devices = false);

  std::shared_ptr<SharedGroup> split(const std::vector<int>& members, int index, const std::string& id,
                                     Milliseconds timeout) override {
    return make(store_, name_ + "/" + id, index, static_cast<int>(members.size()), timeout, share_devices());
  }

  ProcessGroup(std::shared_ptr<Board> board, std::vector<PeerWatch::Watched> watched, std::shared_ptr<Store> store,
               std::string name, bool share_devices)
      : SharedGroup(board, share_devices),
        store_(std::move(store)),
        name_(std::move(name)),
        watch_(board, std::move(watched)) {}

 private:
  std::shared_ptr<Store> store_;
  std::string name_;
  PeerWatch watch_;
};

}  // namespace lockstep::detail
