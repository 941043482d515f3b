// DistributedDataParallel takes a module, not one that is wrapped already
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/nn/linear.h"

using namespace lockstep;

void wrap(const DataParallel<Linear>& replicas, Communicator& communicator) {
  DistributedDataParallel net(replicas, communicator);
}
