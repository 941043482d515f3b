// A rank of an MPI communicator, apart from its communicator object: tasks on streams outlive that.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_engine.h"

namespace lockstep::detail {

// How many bytes the process has sent to ranks of other hosts, since it began; for tests and benchmarks.
LOCKSTEP_API std::uint64_t mpi_bytes_between_hosts();

// When the communicator and its tasks are done with it, the rank has left.
class MpiRank {
 public:
  using Break = std::function<void(const CommError&)>;
  MpiRank(MpiEngine& engine, std::shared_ptr<MpiGroup> group, Break notify_owner);
  MpiRank(const MpiRank&) = delete;
  MpiRank& operator=(const MpiRank&) = delete;
  ~MpiRank();

  // Any collective but an exchange, or a batch of sends and receives; blocks. Tells the owner of a failure.
  void perform(const Collective& collective);
  void perform(const std::vector<Collective>& transfers);
  // The collective will not be performed: the work before it failed.
  void skip(const Collective& collective) noexcept;
  void skip(const std::vector<Collective>& transfers) noexcept { skip(transfers[0]); }
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine);
  // The number of the communicator that these members make, from the first of them.
  // Where the members are, by name; before the first collective, and the same on all of them.
  void set_hosts(std::vector<std::string> hosts);
  const std::vector<std::string>& hosts() const { return hosts_; }
  std::shared_ptr<MpiGroup> split(const std::vector<int>& members, int index, Deadline deadline);
  void fail(const CommError& error);
  void disown();

  MpiEngine& engine() { return engine_; }

 private:
  class Work;
  template <class Body>
  void guarded(Body&& body);
  void carry_out(const Collective& collective);
  void run(Work& work);
  void all_reduce(Work& work);
  bool goes_by_host(const Work& work) const;
  void all_reduce_by_host(Work& work);
  void reduce_along_hosts(Work& work, std::int64_t begin, std::int64_t length, const std::byte* parts);
  void count(std::span<const MpiMessage> messages) const;
  void reduce_scatter(Work& work);
  void broadcast(Work& work);
  void move(Work& work);
  std::byte* staging(std::size_t bytes);

  MpiEngine& engine_;
  const std::shared_ptr<MpiGroup> group_;
  const int rank_, size_;
  std::vector<std::string> hosts_;  // by member; empty: not known
  int per_host_ = 0;                // members on each host, one host after another; 0: they are on one, or mixed
  std::vector<std::uint64_t> sent_, received_;  // by member; under the engine's lock
  std::unique_ptr<std::byte[]> staging_;
  std::size_t staging_bytes_ = 0;
  std::mutex mutex_;
  Break notify_owner_;  // empty once the owner is gone
};

}  // namespace lockstep::detail
