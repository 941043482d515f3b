// FullyShardedDataParallel takes a module, not one that is wrapped already
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/sharding/fully_sharded_data_parallel.h"
#include "lockstep/tensor/nn/linear.h"

using namespace lockstep;

void wrap(const DataParallel<Linear>& replicas, Communicator& communicator) {
  FullyShardedDataParallel net(replicas, communicator);
}
