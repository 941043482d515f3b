// What the ranks of a PeerCommunicator share. Private to the library.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/shared_by_name.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::detail {

class PeerGroup {
 public:
  PeerGroup(std::vector<Device> devices, std::size_t one_shot_bytes);

  int size() const { return static_cast<int>(devices_.size()); }
  Device device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }
  MeetingPlace& place() { return place_; }
  std::size_t one_shot_bytes() const { return one_shot_bytes_; }
  // A stream of the rank's device on which nothing ever is: for copies that are ordered by events alone.
  const Stream& idle_stream(int rank) { return *idle_[static_cast<std::size_t>(rank)]; }
  // Where those that are left meet when the group is broken.
  const std::shared_ptr<Store>& store() const { return store_; }
  // The group of some of the ranks.
  std::shared_ptr<PeerGroup> split(const std::vector<int>& members, const std::string& id);

 private:
  const std::vector<Device> devices_;
  const std::size_t one_shot_bytes_;  // one for all ranks, so that all take the same way
  std::vector<std::unique_ptr<Stream>> idle_;
  MeetingPlace place_;
  const std::shared_ptr<Store> store_ = make_local_store();
  SharedByName<PeerGroup> parts_;
};

}  // namespace lockstep::detail
