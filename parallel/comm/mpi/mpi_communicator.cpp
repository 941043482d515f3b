#include "lockstep/parallel/comm/mpi/mpi_communicator.h"

#include <atomic>
#include <numeric>
#include <utility>

#include "lockstep/parallel/comm/mpi/mpi_library.h"
#include "lockstep/parallel/comm/mpi/mpi_rank.h"
#include "lockstep/parallel/comm/stream_task.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::MpiChannel;
using detail::MpiEngine;
using detail::MpiMember;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MpiEngine& engine, const std::shared_ptr<MpiChannel>& channel, Device device, Milliseconds timeout)
      : Communicator(channel->index, static_cast<int>(channel->members.size()), device, timeout),
        member_(std::make_shared<MpiMember>(engine, channel, [this](const CommError& error) { break_with(error); })) {}
  ~MpiCommunicator() override { member_->disown(); }

  const char* backend() const override { return "mpi"; }

 private:
  void enqueue(const Collective& collective, Stream& stream) override {
    stream.enqueue(detail::StreamTask(member_, collective));
  }
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override {
    try {
      return member_->exchange(collective, mine);
    } catch (const CommError& error) {
      throw break_with(error);
    }
  }
  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string&) override {
    try {
      return std::make_unique<MpiCommunicator>(
          member_->engine(), member_->split(members, index, Deadline::after(timeout())), device(), timeout());
    } catch (const CommError& error) {
      throw break_with(error);
    }
  }
  void on_broken(const CommError& error) override { member_->fail(error); }

  std::shared_ptr<MpiMember> member_;
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
  const auto channel = engine.open(engine.context(engine.size(), number++), std::move(everybody), engine.rank());
  auto communicator = std::make_unique<MpiCommunicator>(engine, channel, device, options.timeout);
  communicator->barrier();
  return communicator;
}

}  // namespace lockstep
