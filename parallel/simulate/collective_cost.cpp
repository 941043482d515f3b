#include "lockstep/parallel/simulate/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/parallel/simulate/nccl_model.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::simulate {
namespace {

struct Place {
  double ranks, local, hosts;  // local: ranks of a host
};

// Straight lines between the points where both axes are logarithms. Below the first point the time is its, beyond the
// last one the rate is.
double look_up(const CollectiveTable& table, double bytes) {
  const auto& points = table.points;
  if (bytes <= points.front().first) return points.front().second;
  if (bytes >= points.back().first) return points.back().second * bytes / points.back().first;
  const auto above = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](double value, const auto& point) { return value < point.first; });
  const auto& [x0, y0] = *std::prev(above);
  const auto& [x1, y1] = *above;
  const double along = std::log(bytes / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, along);
}

// Latency and rate of a step: across hosts those of the network, of which each rank of a host has its share.
struct RingStep {
  double latency, rate;
};

RingStep step_within(const Machine& machine) {
  return {machine.collectives.latency, machine.collectives.ring_bytes_per_second};
}

// Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (2005). Reductions are
// counted as free: memory is faster than links.
double textbook(const Machine& machine, std::string_view op, double bytes, const Place& at) {
  const auto [a, rate] = step_within(machine);
  const double rounds = std::ceil(std::log2(at.local)), part = (at.local - 1) / at.local;
  const double wire = bytes / rate;
  if (at.hosts > 1) {
    const double host_rate = host_bytes_per_second(machine.network);
    const double across_part = (at.hosts - 1) / at.hosts, latency = machine.network.latency;
    if (op == "all_reduce")  // reduce-scatter within hosts, all-reduce across them, all-gather within
      return 2 * (at.local - 1) * a + 2 * part * wire + 2 * (at.hosts - 1) * latency +
             2 * across_part * bytes / host_rate;
    if (op == "all_gather" || op == "reduce_scatter")
      return (at.local - 1) * a + part * wire + (at.hosts - 1) * latency + across_part * bytes / host_rate;
    return rounds * a + wire + std::ceil(std::log2(at.hosts)) * latency + bytes / host_rate;
  }
  const double scatter_gather = (rounds + at.local - 1) * a + 2 * part * wire;
  if (op == "broadcast") return std::min(rounds * (a + wire), scatter_gather);
  if (op == "reduce") return std::min(rounds * (a + wire), 2 * rounds * a + 2 * part * wire);
  if (op == "all_gather" || op == "reduce_scatter") return (at.local - 1) * a + part * wire;
  return std::min({rounds * (a + wire), 2 * (at.local - 1) * a + 2 * part * wire});  // all_reduce
}

// What goes point to point, all at once: no rank sends or receives more than its port carries, nor a host than its
// NICs.
double direct(const Machine& machine, std::string_view op, double bytes, const Place& at) {
  const bool nccl = machine.collectives.model == CollectiveModel::nccl;
  const auto [a, rate] = step_within(machine);
  const double latency = (nccl ? (machine.collectives.nvlink ? 8.4 + 3.4 : 8.4 + 5.7) * 1e-6 : a) +
                         machine.collectives.host_latency +
                         (at.hosts > 1 ? (nccl ? 14e-6 : 0) + machine.network.latency : 0);
  // Of a rank's bytes: those for others; of a host's: those for other hosts.
  const bool pair = op == "send" || op == "recv", all = op == "all_to_all";
  const double out = pair ? bytes : bytes * (at.ranks - 1) / at.ranks;
  double seconds = out / rate;
  if (at.hosts > 1) {
    const double leaving = pair  ? bytes
                           : all ? at.local * bytes * (at.ranks - at.local) / at.ranks
                                 : bytes * (at.ranks - at.local) / at.ranks;
    seconds = std::max(seconds, leaving / host_bytes_per_second(machine.network));
  }
  return latency + seconds;
}

}  // namespace

double collective_seconds(const Machine& machine, std::string_view op, double bytes, int ranks) {
  static constexpr std::string_view kReducing[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"};
  static constexpr std::string_view kDirect[] = {"all_to_all", "gather", "scatter", "send", "recv"};
  const auto known = [op](const auto& names) {
    return std::find(std::begin(names), std::end(names), op) != std::end(names);
  };
  LOCKSTEP_CHECK(known(kReducing) || known(kDirect) || op == "barrier",
                 "[simulate] expected the name of a collective, got '", std::string(op), "'");
  LOCKSTEP_CHECK(ranks >= 1 && ranks <= machine.rank_count(), "[simulate] expected at most ", machine.rank_count(),
                 " ranks, which '", machine.name, "' has, got ", ranks);
  if (op == "barrier") return collective_seconds(machine, "all_reduce", 4, ranks);
  if (ranks == 1) return machine.collectives.host_latency;
  for (const CollectiveTable& table : machine.collectives.tables)
    if (table.op == op && table.ranks == ranks) return look_up(table, bytes);
  const int hosts = (ranks + machine.device_count() - 1) / machine.device_count();
  const Place at{static_cast<double>(ranks), static_cast<double>(hosts == 1 ? ranks : machine.device_count()),
                 static_cast<double>(hosts)};
  if (known(kDirect)) return direct(machine, op, bytes, at);
  return machine.collectives.model == CollectiveModel::nccl
             ? nccl_choice(machine, op, bytes, ranks).seconds
             : textbook(machine, op, bytes, at) + machine.collectives.host_latency;
}

}  // namespace lockstep::simulate
