// Sharded ranks over MPI end with the bits of replicated ones.
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "parallel/sharding/support.h"

using namespace test;

TEST_CASE("fully sharded ranks over MPI end with the bits of replicated ones") {
  const std::unique_ptr<Communicator> comm = make_mpi_communicator(Device::host(0));
  Stream stream(comm->device());
  const StreamScope scope(stream);
  const Doubles expected = train_replicated(*comm, Tower(), adam(), 20);
  CHECK(train_sharded(*comm, Tower(), adam(), 20, {.wrap = wrap_modules<Block>()}) == expected);
  CHECK(train_sharded(*comm, Tower(), adam(), 20, {.reshard_after_forward = false}) == expected);
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
