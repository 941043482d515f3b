// How the GPUs are linked, by what the CUDA runtime says of each pair. Private to the library.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/runtime/backend.h"

namespace lockstep::cuda {

// Of the way from one GPU to another (cudaDeviceGetP2PAttribute).
struct PeerAnswer {
  bool access = false;   // peer access is possible
  int rank = 0;          // of the speed: 0 is the fastest there is on the machine
  bool atomics = false;  // native atomics over the link: NVLink has them, PCIe has not
  friend bool operator==(const PeerAnswer&, const PeerAnswer&) = default;
};

// Of `gpus` GPUs, from i to j at i * gpus + j; what stands at i == j is not looked at, and the links there are those
// between logical devices of one GPU. The runtime has ranks and no rates: each rank halves, thirds, ... the speed,
// which on a DGX-1V is what pairs and single lines of NVLink have. It does not tell lines between two GPUs from a
// switch either: where all ways are alike it is taken for a switch, and where NVLink's differ or are not everywhere for
// lines.
// A GPU with few copy engines carries one copy between peers at a time: its lines are none of their own.
std::vector<DeviceLink> gpu_links(const std::vector<PeerAnswer>& answers, std::size_t gpus, int copy_engines);

// Between two logical devices. Asks the runtime once, for all GPUs.
DeviceLink link_between(int from, int to);

}  // namespace lockstep::cuda
