// What collectives cost, against closed forms and against measurements that others have published.
#include "lockstep/parallel/simulate/collective_cost.h"

#include <cmath>
#include <string>

#include "lockstep/parallel/simulate/nccl_model.h"
#include "lockstep/runtime/error.h"
#include "support/catch.h"

using namespace lockstep::simulate;

namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

Machine load(const char* name) { return load_machine(std::string(LOCKSTEP_MACHINES_FOLDER) + "/" + name + ".json"); }

double bus(const Machine& machine, double bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * bytes / collective_seconds(machine, "all_reduce", bytes, ranks);
}

}  // namespace

TEST_CASE("a measured table wins, between its points and beyond them") {
  const Machine machine = load("8xh200-nvswitch");
  const auto microseconds = [&](double bytes) { return collective_seconds(machine, "all_reduce", bytes, 8) * 1e6; };
  CHECK(microseconds(4 * kMiB) == Approx(69));
  CHECK(microseconds(kMiB) == Approx(46));
  CHECK(microseconds(4) == Approx(40));  // below the first point: its time
  CHECK(microseconds(std::sqrt(4 * kMiB * 8 * kMiB)) == Approx(std::sqrt(69.0 * 94)));
  CHECK(microseconds(32 * kGiB) == Approx(2 * 62339));                                // beyond the last one: its rate
  CHECK(collective_seconds(machine, "all_reduce", 4 * kMiB, 4) * 1e6 != Approx(69));  // of eight ranks
}

TEST_CASE("textbook collectives agree with their formulas") {
  Machine machine = load("4xl40s-p2p");
  machine.collectives.model = CollectiveModel::textbook;
  machine.collectives.latency = 10e-6;
  machine.collectives.ring_bytes_per_second = 10e9;
  const auto seconds = [&](const char* op, double bytes, int ranks) {
    return collective_seconds(machine, op, bytes, ranks);
  };
  CHECK(seconds("all_reduce", 1e9, 4) == Approx(2 * 3 * 10e-6 + 2 * 0.75 * 0.1));
  CHECK(seconds("all_reduce", 4, 4) == Approx(2 * (10e-6 + 4 / 10e9)));  // doubling
  CHECK(seconds("reduce_scatter", 1e9, 4) == Approx(3 * 10e-6 + 0.75 * 0.1));
  CHECK(seconds("broadcast", 4, 4) == Approx(2 * (10e-6 + 4 / 10e9)));
  CHECK(seconds("broadcast", 1e9, 4) == Approx(5 * 10e-6 + 1.5 * 0.1));
  CHECK(seconds("all_to_all", 1e9, 4) == Approx(10e-6 + 0.75 * 0.1));
  CHECK(seconds("all_reduce", 1e9, 1) == 0);
  // Two hosts of four: reduce-scatter and all-gather within, all-reduce across by the host's one NIC.
  machine.network = {.hosts = 2, .nics = 1, .bytes_per_second = 1e9, .latency = 50e-6};
  CHECK(seconds("all_reduce", 1e9, 8) == Approx(2 * 3 * 10e-6 + 0.15 + 2 * 50e-6 + 1.0));
  machine.network.oversubscription = 2;
  CHECK(seconds("all_reduce", 1e9, 8) == Approx(2 * 3 * 10e-6 + 0.15 + 2 * 50e-6 + 2.0));
  machine.network.oversubscription = 1;
  // Point to point: a message of the network's latency, and what leaves a host by its NIC.
  CHECK(seconds("send", 1e9, 8) == Approx(10e-6 + 50e-6 + 1.0));
  CHECK(seconds("all_to_all", 1e9, 8) == Approx(10e-6 + 50e-6 + 4 * 0.5));
  CHECK(seconds("gather", 1e9, 8) == Approx(10e-6 + 50e-6 + 0.5));
}

TEST_CASE("NCCL's model gives the latencies and crossings that its constants give") {
  const Machine machine = load("8xh100-nvswitch");
  const auto microseconds = [&](NcclAlgorithm algorithm, NcclProtocol protocol, int ranks) {
    return nccl_seconds(machine, "all_reduce", 0, ranks, algorithm, protocol) * 1e6;
  };
  using enum NcclAlgorithm;
  using enum NcclProtocol;
  CHECK(microseconds(ring, ll, 8) == Approx(15.0));
  CHECK(microseconds(ring, ll128, 8) == Approx(40.6));
  CHECK(microseconds(ring, simple, 8) == Approx(56.0));
  CHECK(microseconds(tree, ll, 8) == Approx(15.2));
  CHECK(microseconds(tree, ll128, 8) == Approx(31.5));
  CHECK(microseconds(nvls, simple, 8) == Approx(25.0));
  CHECK(std::isinf(microseconds(nvls, simple, 4)));
  CHECK(microseconds(ring, ll, 2) == Approx(7.8));
  CHECK(nccl_choice(machine, "all_reduce", 4096, 8).protocol == ll);
  CHECK(nccl_choice(machine, "all_reduce", kGiB, 8).algorithm == nvls);
  CHECK(nccl_choice(machine, "all_reduce", kGiB, 4).algorithm == ring);
  CHECK(nccl_choice(machine, "broadcast", kGiB, 8).algorithm == ring);
  const Machine old = load("dgx-1-p100");  // knows no LL128
  CHECK(std::isinf(nccl_seconds(old, "all_reduce", 1e6, 8, ring, ll128)));
}

// Large messages: the bus rates that nccl-tests reported (NVIDIA/nccl issues 1455, 812; ml-engineering's README). The
// machine files hold the rates of rings and of NVLS; what is predicted is that nothing else slows large messages.
TEST_CASE("large all-reduces within a host come within a tenth of published bus rates") {
  const Machine h100 = load("8xh100-nvswitch"), h200 = load("8xh200-nvswitch"), a100 = load("dgx-a100");
  struct Row {
    const Machine& machine;
    int ranks;
    double gb_per_s;
  };
  for (const Row& row : {Row{h100, 2, 365}, Row{h100, 4, 370}, Row{h100, 8, 478}, Row{h200, 4, 363.3},
                         Row{h200, 5, 414.2}, Row{h200, 8, 480}, Row{a100, 8, 234.9}}) {
    CAPTURE(row.machine.name, row.ranks);
    CHECK(bus(row.machine, 16 * kGiB, row.ranks) / 1e9 == Approx(row.gb_per_s).epsilon(0.1));
  }
}

// From a network of eight NICs, what a host's ring reaches of it: SimAI's table by size and hosts (inputs/ratio). Small
// messages are all latency, which the model has in its constants.
TEST_CASE("rings across hosts lose to latency as published tables say") {
  Machine machine = load("8xh200-nvswitch");
  machine.collectives.tables.clear();
  machine.network.efficiency = 1;
  machine.network.latency = 0;
  const auto share = [&](double bytes, int hosts) {
    machine.network.hosts = hosts;
    const int ranks = 8 * hosts;
    const double seconds = nccl_seconds(machine, "all_reduce", bytes, ranks, NcclAlgorithm::ring, NcclProtocol::simple);
    const double rate = std::min(machine.collectives.ring_bytes_per_second, host_bytes_per_second(machine.network));
    return 2.0 * (ranks - 1) / ranks * bytes / seconds / rate;
  };
  constexpr int kHosts[] = {2, 4, 8, 16, 32, 64, 128};
  constexpr double kMegabytes[] = {16, 64, 256, 1024, 4096, 16384};
  constexpr double kPublished[6][7] = {{.32, .24, .13, .05, .044, .021, .009}, {.50, .53, .39, .21, .11, .05, .04},
                                       {.85, .77, .69, .57, .39, .21, .10},    {.92, .93, .90, .76, .74, .56, .31},
                                       {.95, .95, .95, .95, .92, .76, .74},    {.96, .96, .96, .96, .96, .96, .92}};
  int close = 0;
  for (int size = 0; size < 6; ++size)
    for (int i = 0; i < 7; ++i) {
      CAPTURE(kMegabytes[size], kHosts[i]);
      const double ratio = share(kMegabytes[size] * kMiB, kHosts[i]) / kPublished[size][i];
      CHECK(ratio > 0.5);
      CHECK(ratio < 2);
      close += ratio > 1 / 1.5 && ratio < 1.5;
    }
  CHECK(close >= 39);
}

TEST_CASE("four hosts of H200 reduce 4 GiB at the published rate") {
  Machine machine = load("8xh200-nvswitch");
  machine.network.hosts = 4;
  CHECK(bus(machine, 4 * kGiB, 32) / 1e9 == Approx(365).epsilon(0.15));
}

TEST_CASE("more bandwidth and fewer ranks never take longer") {
  Machine machine = load("4x8-v100-100gb");
  for (const double bytes : {1e3, 1e6, 25e6, 400e6}) {
    CAPTURE(bytes);
    const double slow = collective_seconds(machine, "all_reduce", bytes, 32);
    CHECK(collective_seconds(machine, "all_reduce", bytes, 8) < slow);
    machine.network.bytes_per_second *= 2;
    CHECK(collective_seconds(machine, "all_reduce", bytes, 32) <= slow);
    machine.network.bytes_per_second /= 2;
  }
}

TEST_CASE("unknown collectives and too many ranks are refused") {
  const Machine machine = load("4xl40s-p2p");
  CHECK_THROWS_WITH(collective_seconds(machine, "all_sum", 4, 2),
                    "[simulate] expected the name of a collective, got 'all_sum'");
  CHECK_THROWS_WITH(collective_seconds(machine, "all_reduce", 4, 5),
                    "[simulate] expected at most 4 ranks, which '4x L40S, PCIe 4, P2P' has, got 5");
}
