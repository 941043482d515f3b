// Ranks on host devices of one machine: threads of a process, or processes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/rank_info.h"
#include "lockstep/parallel/comm/store.h"

namespace lockstep {

namespace detail {
class SharedGroup;
class SharedMember;
}  // namespace detail

struct SharedMemoryOptions {
  Milliseconds timeout = kDefaultTimeout;
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
  SharedMemoryCommunicator(std::shared_ptr<detail::SharedGroup> group, int rank, Device device, Milliseconds timeout);

 private:
  void enqueue(const Collective& collective, Stream& stream) override;
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override;
  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string& id) override;
  void on_broken(const CommError& error) override;

  friend class detail::SharedMember;
  std::shared_ptr<detail::SharedGroup> group_;
  std::shared_ptr<detail::SharedMember> member_;
};

// Ranks that are threads of this process: rank r is for the thread that works on devices[r] (host devices; one may come
// several times). Each may be used, and destroyed, by another thread.
LOCKSTEP_API std::vector<std::unique_ptr<Communicator>> make_thread_group(std::span<const Device> devices,
                                                                          const SharedMemoryOptions& options = {});

}  // namespace lockstep
