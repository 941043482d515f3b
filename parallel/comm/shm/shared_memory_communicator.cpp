#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/comm/comm_error_message.h"
#include "lockstep/parallel/comm/ranks/launcher_protocol.h"
#include "lockstep/parallel/comm/shared_by_name.h"
#include "lockstep/parallel/comm/shm/process_group.h"
#include "lockstep/parallel/comm/shm/shm_rank.h"
#include "lockstep/parallel/comm/stream_task.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {
namespace {

using detail::ControlBlock;
using detail::ShmGroup;
using detail::ShmRank;

static_assert(SharedMemoryCommunicator::kMostRanks == ControlBlock::kMostRanks);

class ThreadGroup final : public ShmGroup {
 public:
  ThreadGroup(int ranks, bool share_devices)
      : ShmGroup(std::make_shared<ControlBlock>(detail::ControlBlockLayout{.ranks = ranks,
                                                                           .threads = 1,
                                                                           .slot_bytes = 16 << 10,
                                                                           .pair_slot_bytes = 4 << 10,
                                                                           .host_slot_bytes = 16 << 10}),
                 share_devices) {}

  std::shared_ptr<ShmGroup> split(const std::vector<int>& members, int, const std::string& id, Milliseconds) override {
    // Also where these have a device each: what the others do on it may depend on other ranks.
    return splits_.get(id, members.size(), [&] {
      return std::make_shared<ThreadGroup>(static_cast<int>(members.size()), share_devices());
    });
  }

  detail::RollCall roll_call() override {
    auto self = std::static_pointer_cast<ThreadGroup>(shared_from_this());
    return {.store = store_, .prefix = "threads", .gone = [self] { return self->gone(); }};
  }

 private:
  const std::shared_ptr<Store> store_ = make_local_store();
  detail::SharedByName<ShmGroup> splits_;  // that not all members have taken yet
};

}  // namespace

SharedMemoryCommunicator::SharedMemoryCommunicator(std::shared_ptr<ShmGroup> group, int rank, Device device,
                                                   Milliseconds timeout)
    : Communicator(rank, group->control().ranks(), device, timeout), group_(std::move(group)) {
  LOCKSTEP_CHECK(device.type() == DeviceType::host, "[SharedMemoryCommunicator] expected a host device, got ", device);
  shm_rank_ = std::make_shared<ShmRank>(group_, rank, *this);
}

SharedMemoryCommunicator::~SharedMemoryCommunicator() { shm_rank_->disown(); }

void SharedMemoryCommunicator::enqueue(const Collective& collective, const Stream& stream) {
  shm_rank_->announce(collective, stream);
  stream.enqueue(detail::StreamTask(shm_rank_, collective));
}

void SharedMemoryCommunicator::enqueue_batch(std::vector<Collective> transfers, const Stream& stream) {
  shm_rank_->announce(transfers, stream);
  stream.enqueue(detail::StreamTask(shm_rank_, std::move(transfers)));
}

detail::RollCall SharedMemoryCommunicator::roll_call() { return group_->roll_call(); }

std::vector<std::string> SharedMemoryCommunicator::exchange(const Collective& collective, const std::string& mine) {
  try {
    shm_rank_->announce(collective);
    hand_over(&group_->control());
    std::vector<std::string> all = shm_rank_->host_channel().exchange(collective, mine);
    take_over(&group_->control());
    return all;
  } catch (const CommError& error) {
    throw break_with(error);
  }
}

std::unique_ptr<Communicator> SharedMemoryCommunicator::make_split(const std::vector<int>& members, int index,
                                                                   const std::string& id) {
  return std::make_unique<SharedMemoryCommunicator>(group_->split(members, index, id, timeout()), index, device(),
                                                    timeout());
}

void SharedMemoryCommunicator::on_broken(const CommError& error) {
  group_->control().fail(error.rank, detail::message_of_failure(error));
}

std::vector<std::unique_ptr<Communicator>> make_thread_group(std::span<const Device> devices,
                                                             const SharedMemoryOptions& options) {
  LOCKSTEP_CHECK(!devices.empty() && devices.size() <= SharedMemoryCommunicator::kMostRanks,
                 "[make_thread_group] expected 1 to ", SharedMemoryCommunicator::kMostRanks, " devices, got ",
                 devices.size());
  bool share_devices = false;
  for (auto device = devices.begin(); device != devices.end(); ++device)
    share_devices = share_devices || std::find(devices.begin(), device, *device) != device;
  const auto group = std::make_shared<ThreadGroup>(static_cast<int>(devices.size()), share_devices);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::size_t r = 0; r < devices.size(); ++r)
    ranks.push_back(
        std::make_unique<SharedMemoryCommunicator>(group, static_cast<int>(r), devices[r], options.timeout));
  return ranks;
}

std::unique_ptr<Communicator> make_process_communicator(const std::shared_ptr<Store>& store, const RankInfo& ranks,
                                                        Device device, const SharedMemoryOptions& options) {
  const int rank = ranks.rank, size = ranks.size;
  LOCKSTEP_CHECK(size > 0 && size <= SharedMemoryCommunicator::kMostRanks && rank >= 0 && rank < size,
                 "[make_process_communicator] expected a rank below the number of ranks, at most ",
                 SharedMemoryCommunicator::kMostRanks, ", got rank ", rank, " of ", size);
  LOCKSTEP_CHECK(store || size == 1, "[make_process_communicator] expected a store, got none");
  LOCKSTEP_CHECK(device.type() == DeviceType::host, "[make_process_communicator] expected a host device, got ", device);
  return detail::make_in_job(ranks, [&] {
    const detail::EndedRanks ended = store ? detail::ended_ranks_of_job(*store, ranks) : nullptr;
    return std::make_unique<SharedMemoryCommunicator>(
        detail::ProcessGroup::make(store, options.name, rank, size, options.timeout, false, ended), rank, device,
        options.timeout);
  });
}

}  // namespace lockstep
