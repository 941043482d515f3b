// Ranks on host devices of one machine: threads of a process, or processes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/ranks/rank_info.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep {

namespace detail {
class ShmGroup;
class ShmRank;
}  // namespace detail

struct SharedMemoryOptions {
  Milliseconds timeout = kDefaultTimeout;
  std::string name = "ranks";  // of a group of processes: tells the groups of one store apart
};

// Reduces in the order of the ranks, to the same bits for threads and processes and however long the message is. A
// collective occupies the thread of its stream until all ranks have come and gone (in host mode inline: the caller).
// Host messages have at most 64 MiB. A process that dies is noticed at once, one that is stopped at the deadline.
class LOCKSTEP_API SharedMemoryCommunicator final : public Communicator {
 public:
  static constexpr int kMostRanks = 128;

  ~SharedMemoryCommunicator() override;
  const char* backend() const override { return "shared_memory"; }

  // For the library: member `rank` of a group.
  SharedMemoryCommunicator(std::shared_ptr<detail::ShmGroup> group, int rank, Device device, Milliseconds timeout);

 private:
  void enqueue(const Collective& collective, const Stream& stream) override;
  void enqueue_batch(std::vector<Collective> transfers, const Stream& stream) override;
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override;
  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string& id) override;
  detail::RollCall roll_call() override;
  void on_broken(const CommError& error) override;

  friend class detail::ShmRank;
  std::shared_ptr<detail::ShmGroup> group_;
  std::shared_ptr<detail::ShmRank> shm_rank_;
};

// Ranks that are threads of this process: rank r is for the thread that works on devices[r] (host devices; one may come
// several times). Each may be used, and destroyed, by another thread.
//
// Ranks that share a device wait for each other at every call, also where the device works on its own (host modes async
// and strict), since what they do goes through the same copy stream and memory: each needs a thread of its own.
LOCKSTEP_API std::vector<std::unique_ptr<Communicator>> make_thread_group(std::span<const Device> devices,
                                                                          const SharedMemoryOptions& options = {});

// Rank `rank` of `size` processes of one user on this machine, which find each other through `store`. Blocks until all
// have called it; CommError on every rank that has, naming those that have not, at the deadline. The store is used
// again by split(). With what discover_ranks says, lockstep-run and the ranks tell each other who has failed.
LOCKSTEP_API std::unique_ptr<Communicator> make_process_communicator(const std::shared_ptr<Store>& store,
                                                                     const RankInfo& ranks, Device device,
                                                                     const SharedMemoryOptions& options = {});
inline std::unique_ptr<Communicator> make_process_communicator(const std::shared_ptr<Store>& store, int rank, int size,
                                                               Device device, const SharedMemoryOptions& options = {}) {
  return make_process_communicator(store, {.rank = rank, .size = size}, device, options);
}

}  // namespace lockstep
