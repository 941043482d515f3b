// Sharded ranks over MPI end with the bits of replicated ones.
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
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
