// ddp_ranks [--threads N]: one rank of a job (of lockstep-run, mpirun, …), or N ranks as threads, go through the
// trainings of tests/parallel/ddp/scenarios.h. Rank 0 prints a line for each, with a checksum of the bits that every
// rank ended with. Exits with 1 when ranks differ or a training is not what one device does.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "parallel/ddp/mesh_scenarios.h"
#include "parallel/ddp/scenarios.h"
#include "support/devices.h"

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::host; }

}  // namespace support

namespace {

using namespace parallel_test;

bool all_good(Communicator& communicator) {
  bool good = true;
  for (const Scenario& scenario : scenarios()) {
    const Doubles parameters = scenario.rank(communicator);
    const std::string hash =
        detail::to_hex(detail::Sha256().update(parameters.data(), parameters.size() * sizeof(double)).digest());
    bool same = true;
    for (const std::string& other : communicator.all_gather_bytes(hash)) same &= other == hash;
    const double difference = largest_difference(parameters, scenario.whole(communicator.size()));
    const bool hooked = scenario.with_hook(communicator, all_reduce_hook) == parameters;
    const bool fits = same && hooked && difference <= scenario.tolerance;
    good &= fits;
    if (communicator.rank() == 0)
      std::printf("%-28s %s %s\n", scenario.name.c_str(), hash.substr(0, 16).c_str(),
                  fits      ? "good"
                  : !same   ? "ranks differ"
                  : !hooked ? "the hook all_reduce changes it"
                            : cat("off by ", difference).c_str());
  }
  if (communicator.size() == kMeshRanks) {
    const Doubles parameters = train_on_mesh(communicator);
    const double difference =
        largest_difference(parameters, train_mesh_alone()[static_cast<std::size_t>(communicator.rank())]);
    detail::Sha256 hash;
    for (const std::string& each : communicator.all_gather_bytes(
             std::string(reinterpret_cast<const char*>(parameters.data()), parameters.size() * sizeof(double))))
      hash.update(each.data(), each.size());
    const bool fits = difference <= 1e-10;
    good &= fits;
    if (communicator.rank() == 0)
      std::printf("%-28s %s %s\n", "mesh of 2 x 2", detail::to_hex(hash.digest()).substr(0, 16).c_str(),
                  fits ? "good" : cat("off by ", difference).c_str());
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int threads = argc == 3 && std::strcmp(argv[1], "--threads") == 0 ? std::atoi(argv[2]) : 0;
    if (argc != 1 && threads <= 0) return std::fprintf(stderr, "usage: ddp_ranks [--threads N]\n"), 2;
    if (threads > 0) {
      for (const bool good : run_ranks(threads, all_good))
        if (!good) return 1;
      return 0;
    }
    const RankInfo rank = discover_ranks();
    return all_good(*make_communicator({.rank = rank})) ? 0 : 1;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "ddp_ranks: %s\n", error.what()), 1;
  }
}
