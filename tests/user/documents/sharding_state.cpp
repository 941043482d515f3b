#include <filesystem>

#include "lockstep/models.h"

struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  const std::string folder = (std::filesystem::temp_directory_path() / "lockstep-document-sharding").string();
  std::filesystem::create_directories(folder);
  run_ranks(2, [&](Communicator& communicator) {
    FullyShardedDataParallel net(Net{}, communicator);
    AdamW optimizer(net.parameters(), {.lr = 1e-3});
    mean(square(net(randn({4, 6}, {.device = communicator.device()})))).backward();
    optimizer.step();
    // the block
  });
  std::filesystem::remove_all(folder);
}
