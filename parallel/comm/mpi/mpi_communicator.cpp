#include "lockstep/parallel/comm/mpi/mpi_communicator.h"

#include <unistd.h>

#include <atomic>
#include <numeric>
#include <set>
#include <utility>

#include "lockstep/parallel/comm/mpi/mpi_library.h"
#include "lockstep/parallel/comm/mpi/mpi_rank.h"
#include "lockstep/parallel/comm/stream_task.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::MpiEngine;
using detail::MpiGroup;
using detail::MpiRank;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MpiEngine& engine, const std::shared_ptr<MpiGroup>& group, Device device, Milliseconds timeout)
      : Communicator(group->index, static_cast<int>(group->members.size()), device, timeout),
        mpi_rank_(std::make_shared<MpiRank>(engine, group, [this](const CommError& error) { break_with(error); })) {}
  ~MpiCommunicator() override { mpi_rank_->disown(); }

  void set_hosts(std::vector<std::string> hosts) { mpi_rank_->set_hosts(std::move(hosts)); }

  const char* backend() const override { return "mpi"; }
  int host_count() const override {
    const std::vector<std::string>& hosts = mpi_rank_->hosts();
    return static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size());
  }

 private:
  void enqueue(const Collective& collective, const Stream& stream) override {
    stream.enqueue(detail::StreamTask(mpi_rank_, collective));
  }
  void enqueue_batch(std::vector<Collective> transfers, const Stream& stream) override {
    stream.enqueue(detail::StreamTask(mpi_rank_, std::move(transfers)));
  }
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override {
    try {
      return mpi_rank_->exchange(collective, mine);
    } catch (const CommError& error) {
      throw break_with(error);
    }
  }
  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string&) override {
    try {
      auto part = std::make_unique<MpiCommunicator>(
          mpi_rank_->engine(), mpi_rank_->split(members, index, Deadline::after(timeout())), device(), timeout());
      std::vector<std::string> hosts;
      for (const int m : members) hosts.push_back(mpi_rank_->hosts()[static_cast<std::size_t>(m)]);
      part->set_hosts(std::move(hosts));
      return part;
    } catch (const CommError& error) {
      throw break_with(error);
    }
  }
  detail::RollCall roll_call() override {
    throw NotSupported(
        "[shrink] expected ranks that can go on without the others, got those of an MPI job, which "
        "cannot be mended: start it again");
  }
  void on_broken(const CommError& error) override { mpi_rank_->fail(error); }

  std::shared_ptr<MpiRank> mpi_rank_;
};

}  // namespace

std::string why_no_mpi() {
  bool is_rank = false;
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    is_rank |= !detail::environment(variable).empty();
  if (!is_rank && !mpi::in_use())
    return "[mpi] expected a rank of an MPI job, got a process that mpirun (or mpiexec, or srun with MPI) has not "
           "started";
  return mpi::library_error();
}

std::unique_ptr<Communicator> make_mpi_communicator(Device device, const MpiOptions& options) {
  LOCKSTEP_CHECK(device.type() == DeviceType::host, "[make_mpi_communicator] expected a host device, got ", device);
  LOCKSTEP_CHECK(options.timeout.count() > 0, "[make_mpi_communicator] expected a positive timeout, got ",
                 options.timeout.count(), " ms");
  mpi::library();
  MpiEngine& engine = MpiEngine::instance(options.timeout);
  static std::atomic<std::int64_t> number{1};  // the same on all ranks, which make as many calls; 0 is the engine's own
  std::vector<int> everybody(static_cast<std::size_t>(engine.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto group = engine.open(engine.context(engine.size(), number++), std::move(everybody), engine.rank());
  auto communicator = std::make_unique<MpiCommunicator>(engine, group, device, options.timeout);
  char name[256] = "";
  if (options.host.empty()) (void)::gethostname(name, sizeof name - 1);
  communicator->set_hosts(communicator->all_gather_bytes(options.host.empty() ? name : options.host));
  return communicator;
}

}  // namespace lockstep
