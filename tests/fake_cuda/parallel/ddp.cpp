// Ranks that are CUDA devices train as one device does: the scenarios of tests/parallel/ddp.
#include "lockstep/parallel/comm/peer_communicator.h"
#include "parallel/ddp/scenarios.h"
#include "support/cuda_devices.h"

using namespace test;

namespace {

using Make = decltype(RunRanksOptions::make);

const Make kPeers = [](std::span<const Device> devices, Milliseconds timeout) {
  return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
};

void check_training(const Make& make, std::initializer_list<int> counts) {
  for (const int ranks : counts) {
    std::vector<Device> devices;
    for (int r = 0; r < ranks; ++r) devices.push_back(support::cuda_device(ranks - 1 - r));
    for (const Scenario& scenario : scenarios()) {
      INFO(scenario.name << ", " << ranks << " ranks");
      const auto result = run_ranks(ranks, scenario.rank, {.devices = devices, .make = make});
      CHECK(different(result) == 0);
      CHECK(largest_difference(result[0], scenario.whole(ranks)) <= scenario.tolerance);
    }
  }
}

}  // namespace

TEST_CASE("ddp over peer copies trains as one device does") { check_training(kPeers, {2, 8}); }
