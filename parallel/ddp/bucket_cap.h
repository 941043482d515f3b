// What bucket_cap_mb = kAutoBucketCap chooses: how large buckets are, by what is reduced and what joins the ranks.
// Never by a timing, so that it is the same in every run. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/topology.h"

namespace lockstep::detail {

// What joins ranks of one host.
enum class HostLink : std::uint8_t { memory, pcie, nvlink };

// What joins the ranks of a job, as one of them sees it.
struct RankLinks {
  HostLink within = HostLink::memory;
  double network_gbits = 0;  // Gb/s of a host, all its network devices together
};

// NVLink where it joins all of them, be it over others, as NCCL's rings go; PCIe where one is reached only by slots,
// which copies both ways share, or through the host's memory.
HostLink host_link(const Links& links);

// Of a rank on `device`. LOCKSTEP_HOST_LINK (memory, pcie, nvlink) and LOCKSTEP_NETWORK_GBITS say it. Without them:
// host devices share memory, and a recording is taken to be of NVLink. CUDA devices have what host_link() says of those
// that the process sees, one that is alone NVLink; the network is what network_gbits() finds. Throws InvalidArgument
// for what the variables cannot mean.
RankLinks links_of(Device device);

// What the system says of its network in `folder`: the sum over the active ports of InfiniBand and RoCE devices, else
// the fastest other interface, else 25.
double network_gbits(const std::string& folder = "/sys/class");

struct BucketCapFacts {
  std::uint64_t bytes = 0;  // of all gradients, as they are reduced
  int ranks = 1, hosts = 1;
  RankLinks links = {};
};

// Bytes of a bucket, as reduced: a multiple of 64 KiB from 1 to 256 MiB.
//
// The reduction of b bytes takes a + b / r: a start-up and a rate (Hockney's model, as in Thakur, Rabenseifner, Gropp,
// Optimization of Collective Communication Operations in MPICH, 2005). Behind a backward that hides the others, the
// last bucket is waited for: a + b / r. The others' start-ups are hidden, but take a share s of the device from the
// backward's kernels: s * a * bytes / b. The sum of both is least at b = sqrt(s * a * r * bytes). Where the backward
// hides little, larger buckets are better; who trains so gives bucket_cap_mb.
std::size_t choose_bucket_cap(const BucketCapFacts& facts);

}  // namespace lockstep::detail
