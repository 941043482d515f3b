// How a DataParallel works.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/parallel/scatter_policy.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// What brings parameters to the mirrors and gradients home.
enum class Transport : std::uint8_t {
  copies,  // between two devices at a time, and kernels of Lockstep's own: gradients are summed in replica order
  // Collectives of NCCL's, all devices at once in one group of calls. Parameters arrive as they are; gradients are
  // summed in NCCL's order: the same bits for the same devices, machine and version of NCCL, and no others'. A batch of
  // fewer pieces than devices, and sums of less than 1 MiB, go by copies all the same.
  nccl,
};

struct DataParallelOptions {
  // devices[0] is home: the parameters are there. An empty list: no replicas, the module is called directly.
  std::vector<Device> devices = accelerators();
  std::optional<Device> output_device = std::nullopt;  // default devices[0]; `cpu` allowed
  std::int64_t dim = 0;                                // of inputs and outputs
  ScatterPolicy policy = {};
  Milliseconds timeout = kDefaultTimeout;  // of the replicas, and of refreshing slots that somebody reads
  // NCCL is for CUDA devices, each on a GPU of its own; its collectives have the time-out above. Where it fails, the
  // call that waits for it throws CommError, and the next call begins anew.
  Transport transport = Transport::copies;
  // The most CUDA graphs that each device keeps; 0: none. Calls outside of gradients, of a module in evaluation mode,
  // go by them: the second call of a replica with tensors of some shapes, dtypes and strides is captured, later ones
  // are one launch, with the same bits. Others, and what cannot be captured, are made in the ordinary way; stats() says
  // how many, and why. Each graph keeps the memory of a forward. docs/cuda-graphs.md has the rules for forward.
  std::int64_t graphs = 0;
  // Calls outside of gradients, of a module in evaluation mode, compute as prepare(module) does: norms and relus
  // folded, weights packed, equal to the ordinary results up to rounding, and not with graphs. Others are made in the
  // ordinary way. tensor/nn/prepare.h has the rules for forward, and what it costs in memory on each device.
  bool prepared = false;
};

}  // namespace lockstep
