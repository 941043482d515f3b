#include "lockstep/parallel/simulate/nccl_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace lockstep::simulate {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9, kNoTime = std::numeric_limits<double>::infinity();

// Tables of NCCL's tuning.cc, by protocol: LL, LL128, Simple.
constexpr double kTreeBase[] = {6.8, 14, 8.4}, kRingBase[] = {6.6, 14, 8.4};
constexpr double kTreeNvlink[] = {0.6, 1.25, 4.0}, kRingNvlink[] = {0.6, 1.9, 3.4};
constexpr double kTreePcie[] = {1.0, 1.9, 4.0}, kRingPcie[] = {1.0, 2.5, 5.7};
constexpr double kTreeNetwork[] = {5, 8.5, 14}, kRingNetwork[] = {2.7, 4, 14};
constexpr double kNvls = 25;

// By generation: Volta (and before), Ampere, Hopper, Blackwell. GB/s; LL of all channels, the others of each.
constexpr double kLlOneHost[] = {39, 87.7, 141, 282}, kLlTwoHosts[] = {39, 39, 39, 39},
                 kLlMore[] = {20.4, 20.4, 20.4, 20.4};
constexpr double kRingLl128[] = {20, 20, 36.7, 40};
constexpr double kTreeOneHost[] = {26.5, 24, 38.7, 70}, kTreeTwoHosts[] = {18.5, 23.6, 41.4, 42.8},
                 kTreeMore[] = {10, 17.8, 36, 24};
// What trees reach of their rate, by size: 64 bytes * 2^i.
constexpr double kTreeBySize[3][23] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9}};
constexpr double kNvlsEfficiency[] = {0.85, 0.74};  // Hopper, Blackwell

std::size_t generation(const Collectives& collectives) {
  return collectives.generation == Generation::pascal ? 0 : static_cast<std::size_t>(collectives.generation) - 1;
}

double by_hosts(int hosts, const double (&one)[4], const double (&two)[4], const double (&more)[4], std::size_t at) {
  return hosts == 1 ? one[at] : hosts == 2 ? two[at] : more[at];
}

double ring_rate(const Collectives& collectives, int local_ranks) {
  const auto found = collectives.ring_by_ranks.find(local_ranks);
  return found == collectives.ring_by_ranks.end() ? collectives.ring_bytes_per_second : found->second;
}

struct Shape {
  int ranks, local, hosts;
  std::size_t generation, protocol;
};

double ring_seconds(const Machine& machine, std::string_view op, double bytes, const Shape& shape) {
  const Collectives& made = machine.collectives;
  const std::size_t p = shape.protocol;
  const bool all_reduce = op == "all_reduce", rooted = op == "broadcast" || op == "reduce";
  const double steps = all_reduce ? 2.0 * (shape.ranks - 1) : rooted ? shape.ranks : shape.ranks - 1;
  double rate = ring_rate(made, shape.local);
  if (shape.hosts > 1) rate = std::min(rate, host_bytes_per_second(machine.network));
  if (p == 0)
    rate = std::min(rate * 0.5, kGiga * by_hosts(shape.hosts, kLlOneHost, kLlTwoHosts, kLlMore, shape.generation));
  if (p == 1) rate = std::min(rate * 0.92, made.channels * kGiga * kRingLl128[shape.generation]);
  const double within = made.nvlink ? kRingNvlink[p] : kRingPcie[p];
  const double across = kRingNetwork[p] + (p == 2 ? 2 : 1) * machine.network.latency / kMicro;
  double latency = kRingBase[p];
  if (rooted) {
    // Channels of different orders: each hop counts, and Simple's is the tree's.
    latency += p == 2 ? shape.ranks * (shape.hosts > 1 ? across : kTreeNvlink[2]) : (shape.hosts > 1 ? across : within);
  } else {
    const double proxy = shape.hosts == 1 ? 0 : p == 2 ? 3 : 1;  // of a host that also feeds a NIC
    const double inter = shape.hosts == 1 ? 0 : (all_reduce ? 2.0 : 1.0) * (shape.hosts - 1);
    latency += (steps - inter) * std::max(within, proxy) + inter * across;
  }
  if (p == 2 && shape.hosts > 1 && all_reduce && bytes / (made.channels * shape.ranks) >= 64)
    latency *= made.generation < Generation::ampere ? 1.9 : 1.4;
  return latency * kMicro + bytes / (rate * shape.ranks / steps);
}

double tree_seconds(const Machine& machine, double bytes, const Shape& shape) {
  const Collectives& made = machine.collectives;
  const std::size_t p = shape.protocol, g = shape.generation;
  double rate = ring_rate(made, shape.local);
  if (shape.hosts > 1) rate = std::min(rate, (shape.hosts == 2 ? 2 : 1) * host_bytes_per_second(machine.network));
  rate =
      std::min(rate * 0.92, made.channels * kGiga * by_hosts(shape.hosts, kTreeOneHost, kTreeTwoHosts, kTreeMore, g));
  if (p == 0) rate = std::min(rate / 3.8, kGiga * by_hosts(shape.hosts, kLlOneHost, kLlTwoHosts, kLlMore, g));
  if (p == 1) rate *= shape.hosts == 1 ? 7.0 / 9 : 120.0 / 128;
  const auto units = static_cast<std::uint64_t>(bytes / 64);
  const auto size_class = units == 0 ? 0 : static_cast<std::size_t>(std::bit_width(units)) - 1;
  if (size_class < 23) rate *= kTreeBySize[p][size_class];
  const double within = made.nvlink ? kTreeNvlink[p] : kTreePcie[p];
  const double across = kTreeNetwork[p] + (p == 2 ? 2 : 1) * machine.network.latency / kMicro;
  const double latency = kTreeBase[p] + 2 * ((shape.local - 1) * within + std::floor(std::log2(shape.hosts)) * across);
  return latency * kMicro + bytes / (rate * 0.5);
}

}  // namespace

double host_bytes_per_second(const Network& network) {
  return network.nics * network.bytes_per_second * network.efficiency / network.oversubscription;
}

double nccl_seconds(const Machine& machine, std::string_view op, double bytes, int ranks, NcclAlgorithm algorithm,
                    NcclProtocol protocol) {
  const Collectives& made = machine.collectives;
  const int hosts = (ranks + machine.device_count() - 1) / machine.device_count();
  const Shape shape{ranks, hosts == 1 ? ranks : machine.device_count(), hosts, generation(made),
                    static_cast<std::size_t>(protocol)};
  const bool before_volta = made.generation == Generation::pascal;
  if (protocol == NcclProtocol::ll128 && (before_volta || !made.nvlink)) return kNoTime;
  if (algorithm == NcclAlgorithm::ring) return ring_seconds(machine, op, bytes, shape) + made.host_latency;
  if (op != "all_reduce") return kNoTime;
  if (algorithm == NcclAlgorithm::tree) return tree_seconds(machine, bytes, shape) + made.host_latency;
  if (hosts > 1 || made.nvls_from == 0 || ranks < made.nvls_from || made.generation < Generation::hopper ||
      protocol != NcclProtocol::simple)
    return kNoTime;
  const auto measured = made.nvls_by_ranks.find(ranks);
  const double bus = measured != made.nvls_by_ranks.end()
                         ? measured->second
                         : ring_rate(made, ranks) * 2 * kNvlsEfficiency[made.generation == Generation::blackwell] *
                               (made.channels - 1) / made.channels;
  return kNvls * kMicro + bytes / (bus * ranks / (2.0 * (ranks - 1))) + made.host_latency;
}

NcclChoice nccl_choice(const Machine& machine, std::string_view op, double bytes, int ranks) {
  NcclChoice best{.seconds = kNoTime};
  for (const NcclAlgorithm algorithm : {NcclAlgorithm::ring, NcclAlgorithm::tree, NcclAlgorithm::nvls})
    for (const NcclProtocol protocol : {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple}) {
      const double seconds = nccl_seconds(machine, op, bytes, ranks, algorithm, protocol);
      if (seconds < best.seconds) best = {algorithm, protocol, seconds};
    }
  return best;
}

}  // namespace lockstep::simulate
