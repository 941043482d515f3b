// A program outside the project that uses what the project installs: a module on two devices, a step, an error caught.
#include <cstdio>

#include "lockstep/lockstep.h"

using namespace lockstep;

struct Net : Module<Net> {
  Linear first{4, 8}, second{8, 2};
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

int main() {
  configure_host({.devices = 2});
  auto net = DataParallel(Net{}, {.devices = {Device::host(0), Device::host(1)}});
  SGD optimizer(net.parameters(), {.lr = 0.1});
  Tensor loss = mean(square(net(ones({6, 4}))));
  loss.backward();
  optimizer.step();
  bool caught = false;
  try {
    net(ones({6, 5}));
  } catch (const ReplicaError& error) {  // its type must be the library's, also across a shared library's border
    caught = error.replica() == 0;
  }
  std::printf("%zu devices, loss %.3f\n", accelerators().size(), loss.item<double>());
  return caught && net.module().first.weight.grad().defined() ? 0 : 1;
}
