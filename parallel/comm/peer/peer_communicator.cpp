#include "lockstep/parallel/comm/peer/peer_communicator.h"

#include <algorithm>
#include <atomic>

#include "lockstep/parallel/comm/peer/peer_rank.h"
#include "lockstep/parallel/comm/shared_by_name.h"
#include "lockstep/runtime/copy/peer.h"

namespace lockstep {
namespace {

using detail::PeerCommunicator;
using detail::PeerGroup;

void check_options(const PeerOptions& options) {
  LOCKSTEP_CHECK(options.scratch_bytes > 0, "[make_peer_group] expected scratch memory, got 0 bytes");
}

void check_devices(const std::vector<Device>& devices) {
  LOCKSTEP_CHECK(!devices.empty(), "[make_peer_group] expected at least one device, got none");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    LOCKSTEP_CHECK(!devices[i].is_cpu() && devices[i].type() == devices[0].type(),
                   "[make_peer_group] expected devices of one kind, host or CUDA, got ", to_string(devices));
    LOCKSTEP_CHECK(std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), devices[i]) ==
                       devices.begin() + static_cast<std::ptrdiff_t>(i),
                   "[make_peer_group] expected each device once, got ", to_string(devices));
    ordinal(devices[i]);  // throws for one that does not exist
  }
  for (const Device from : devices)
    for (const Device to : devices)
      if (from != to) peer_copies(from, to);  // tried now, not while a collective is on its way
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_peer_group(const std::vector<Device>& devices,
                                                           const PeerOptions& options) {
  check_options(options);
  check_devices(devices);
  const auto group = std::make_shared<PeerGroup>(devices, options.one_shot_bytes);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < group->size(); ++rank)
    ranks.push_back(std::make_unique<PeerCommunicator>(group, rank, options));
  return ranks;
}

std::unique_ptr<Communicator> make_peer_communicator(const std::shared_ptr<Store>& store, int rank, int size,
                                                     Device device, const PeerOptions& options) {
  constexpr const char* kName = "make_peer_communicator";
  check_options(options);
  LOCKSTEP_CHECK(store, "[", kName, "] expected a store");
  LOCKSTEP_CHECK(rank >= 0 && rank < size, "[", kName, "] expected a rank below the number of ranks, got ", rank,
                 " of ", size);
  const Deadline deadline = Deadline::after(options.timeout);
  // Every rank counts the groups that it has asked for: a store may see several.
  const std::string group = cat("peer/", store->add(cat("peer/asked/", rank), 1), '/');
  if (rank == 0) {
    static std::atomic<std::uint64_t> groups{0};
    store->set(group + "name", cat(detail::process_token(), '.', ++groups));
  }
  store->set(cat(group, "process/", rank), detail::process_token());
  store->set(cat(group, "device/", rank), to_string(device));

  const std::string name = store->get(group + "name", deadline);
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) {
    texts.push_back(store->get(cat(group, "device/", r), deadline));
    if (store->get(cat(group, "process/", r), deadline) + '.' != name.substr(0, name.find('.') + 1))
      throw CommError(r, kName, "expected all ranks to be threads of one process, this one and rank 0 are not");
  }
  std::vector<Device> devices;
  for (const std::string& text : texts) devices.push_back(Device::parse(text));
  check_devices(devices);
  static auto* const groups = new detail::SharedByName<PeerGroup>;  // whose ranks are still on their way
  const auto make = [&] { return std::make_shared<PeerGroup>(devices, options.one_shot_bytes); };
  return std::make_unique<PeerCommunicator>(groups->get(name, devices.size(), make), rank, options);
}

}  // namespace lockstep
