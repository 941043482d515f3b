#include "lockstep/parallel/comm/peer/peer_group.h"

#include <numeric>

namespace lockstep::detail {
namespace {

std::vector<int> all_below(std::size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

PeerGroup::PeerGroup(std::vector<Device> devices, std::size_t one_shot_bytes)
    : devices_(std::move(devices)), one_shot_bytes_(one_shot_bytes), place_(all_below(devices_.size())) {
  for (const Device device : devices_) idle_.push_back(std::make_unique<Stream>(device));
}

std::shared_ptr<PeerGroup> PeerGroup::split(const std::vector<int>& members, const std::string& id) {
  return parts_.get(id, members.size(), [&] {
    std::vector<Device> devices;
    for (const int member : members) devices.push_back(device(member));
    return std::make_shared<PeerGroup>(std::move(devices), one_shot_bytes_);
  });
}

}  // namespace lockstep::detail
