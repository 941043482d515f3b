// What PyTorch would enqueue for a step of which this library has recorded one device: models of its schedules, as its
// documents and sources describe them, to be replayed by the same rules. They are no measurements of PyTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::simulate {

// The kernels of a training step on one device.
struct TrainingStep {
  std::vector<Kernel> forward, backward, optimizer;
  std::vector<std::int64_t> gradient_bytes;  // of parameters, that each kernel of backward brings
  std::int64_t parameter_bytes = 0;
  std::int64_t input_bytes = 0;   // copied from the host before the step's first kernel
  std::int64_t output_bytes = 0;  // what the loss reads
};

// Takes the step between the last two marks apart: the backward begins with the first gradient of a loss, the
// parameters are what the kernels of the optimizer read and do not write. Which kernels bring gradients of parameters
// the shapes of forward's weights tell; where they do not, gradients come evenly. `result` is a replay of `recording`.
// Throws InvalidArgument for what is no training step of one device.
TrainingStep find_training_step(const Recording& recording, const Result& result);

// torch.nn.parallel.DistributedDataParallel (torch/nn/parallel/distributed.py,
// torch/csrc/distributed/c10d/reducer.hpp): gradients are copied into buckets in the order of backward, the first of 1
// MiB, the others of 25 MiB; a full bucket is reduced on a stream of its own at once; the optimizer waits for all, and
// each is copied out. One rank of `ranks`, `steps` steps.
Recording pytorch_distributed(const TrainingStep& step, int ranks, int steps = 3);

// torch.nn.DataParallel (torch/nn/parallel/data_parallel.py, torch/nn/parallel/comm.py): scatter from device 0; every
// forward broadcasts all parameters by NCCL in buffers of 10 MiB; a Python thread for each device, one of which runs at
// a time; outputs are gathered on device 0; backward in a thread for each device; after all of it gradients are reduced
// to device 0 in buffers of 10 MiB; the optimizer runs there. Each device has the work of the recorded one.
Recording pytorch_data_parallel(const TrainingStep& step, int devices, int steps = 3);

}  // namespace lockstep::simulate
