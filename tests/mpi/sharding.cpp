// Sharded ranks over MPI end with the bits of replicated ones.
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

// Stage 3 gathers the units but the outermost for the forward and again for the backward, stage 2 once.
TEST_CASE("fully sharded ranks over MPI end with the bits of replicated ones, in stage 3 and in stage 2") {
  const std::unique_ptr<Communicator> comm = make_mpi_communicator(Device::host(0));
  REQUIRE(std::string(comm->backend()) == "mpi");
  Stream stream(comm->device());
  const StreamScope scope(stream);
  const Doubles expected = train_replicated(*comm, Tower(), adam(), 20);
  for (const bool reshards : {true, false}) {
    INFO("stage " << (reshards ? 3 : 2));
    FullyShardedDataParallel<Tower> net(Tower(), *comm,
                                        {.wrap = wrap_modules<Block>(), .reshard_after_forward = reshards});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    for (int i = 0; i < 20; ++i) {
      if (i == 19) trace::start();
      optimizer.zero_grad();
      loss_of(net(rows_of(*comm, i))).backward();
      optimizer.step();
    }
    synchronize(comm->device());
    trace::stop();
    const std::vector<trace::Span> spans = trace::spans();
    CHECK(std::count_if(spans.begin(), spans.end(), [](const trace::Span& span) {
            return span.work.kind == trace::Kind::host && span.work.name &&
                   std::string_view(span.work.name) == "gather";
          }) == (reshards ? 1 + 2 * 3 : 1 + 3));
    CHECK(values_of(net.whole_state_dict()) == expected);
  }
}

TEST_CASE("a divided optimizer over MPI ends with the bits of the optimizer alone, and its state is whole on request") {
  const std::unique_ptr<Communicator> comm = make_mpi_communicator(Device::host(0));
  Stream stream(comm->device());
  const StreamScope scope(stream);
  const Doubles expected = train_replicated(*comm, Tower(), adam(), 20);
  DistributedDataParallel<Tower> net(Tower(), *comm, small_buckets());
  ZeroRedundancyOptimizer optimizer(Adam(net.parameters(), {.lr = 0.01}), *comm);
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    loss_of(net(rows_of(*comm, i))).backward();
    optimizer.step();
  }
  CHECK(all_parameters(net.module()) == expected);
  Tower plain;
  Adam whole(plain.parameters(), {.lr = 0.5});
  whole.load_state_dict(optimizer.whole_state_dict(net.module()), plain);
  CHECK(whole.lr() == 0.01);
}
