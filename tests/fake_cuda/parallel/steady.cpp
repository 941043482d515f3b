// A step beside a collective that spins on the devices must not do what waits for it.
#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

TEST_CASE("no kernel is loaded once a wrapper is made") {
  const std::vector<Device> devices{support::device_at(2), support::device_at(1)};
  const auto net = DataParallel(Linear(3, 2), {.devices = devices});
  const Tensor x = ones({4, 4}, {.device = devices[0]});
  relu(x);  // the result's memory comes from the cache from here on
  const fake_cuda::SpinningCollective spinning;
  softmax(x, 1);  // another kernel, from a file of its own
  CHECK(fake_cuda::take_failures().empty());
}

TEST_CASE("a training step in the steady state asks for nothing that waits for a collective") {
  support::needs_devices(4);
  const std::vector<Device> devices{support::device_at(1), support::device_at(0), support::device_at(3)};
  auto net = DataParallel(Sequential(Linear(5, 8), ReLU(), Linear(8, 2)), {.devices = devices});
  SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const Tensor x = ones({9, 5}, {.device = devices[0]});
  const auto step = [&] {
    optimizer.zero_grad();
    sum(square(net(x))).backward();
    optimizer.step();
  };
  for (int i = 0; i < 4; ++i) step();
  for (const Device& device : devices) synchronize(device);
  const fake_cuda::SpinningCollective spinning;
  step();
  step();
  CHECK(fake_cuda::take_failures().empty());
}
