// A training as a user writes it, for the mode that records: nothing in it knows of that but the marks.
//
// usage: lockstep-user-recorded <folder of the recording> [exit]
//   Says which communicator it got, and whether anything is written while it still runs. exit: ends with std::exit.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lockstep/lockstep.h"
#include "lockstep/runtime/record/record.h"

using namespace lockstep;

namespace {

struct Net : Module<Net> {
  Linear first{64, 32}, second{32, 8};
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

}  // namespace

int main(int argc, char** argv) try {
  {
    const auto communicator = make_communicator();
    DistributedDataParallel<Net> net(Net(), *communicator, {.bucket_cap_mb = kAutoBucketCap});
    SGD optimizer(net.parameters(), {.lr = 0.1});
    const Tensor x = zeros({4, 64}, {.device = communicator->device()});
    for (int step = 0; step < 4; ++step) {
      if (step == 2) record::restart();
      record::mark("step");
      optimizer.zero_grad();
      mean(net(x)).backward();
      optimizer.step();
    }
    record::mark("step");
    bool written = false;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(argv[1])))
      written |= entry.file_size() > 0;
    std::printf("%s: rank %d of %d on %d hosts, recording %s, parameters %s\n", communicator->backend(),
                communicator->rank(), communicator->size(), communicator->host_count(),
                written ? "written" : "not written", parameters_sha256(net.module()).c_str());
  }
  if (argc > 2 && std::strcmp(argv[2], "exit") == 0) std::exit(0);
} catch (const std::exception& error) {
  std::printf("failed: %s\n", error.what());
  return 1;
}
