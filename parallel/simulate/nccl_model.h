// NCCL's own model of its collectives (src/graph/tuning.cc of NCCL 2.30): what it chooses by. It ranks well and is
// optimistic: a measured table says more.
#pragma once

#include <string_view>

#include "lockstep/parallel/simulate/machine.h"

namespace lockstep::simulate {

enum class NcclAlgorithm { ring, tree, nvls };
enum class NcclProtocol { ll, ll128, simple };

// Of all_reduce, all_gather, reduce_scatter, broadcast and reduce. Infinite where NCCL has no such combination: trees
// reduce to all only, NVLS within a host only, LL128 wants NVLink from Volta on.
double nccl_seconds(const Machine& machine, std::string_view op, double bytes, int ranks, NcclAlgorithm algorithm,
                    NcclProtocol protocol);

struct NcclChoice {
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  NcclProtocol protocol = NcclProtocol::simple;
  double seconds = 0;
};
// The fastest by the model.
NcclChoice nccl_choice(const Machine& machine, std::string_view op, double bytes, int ranks);

// Bytes per second that a host sends to others, all NICs together.
double host_bytes_per_second(const Network& network);

}  // namespace lockstep::simulate
