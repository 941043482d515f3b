#include <cstdio>

#include "lockstep/lockstep.h"

using namespace lockstep;

struct Net : Module<Net> {
  Linear hidden{2, 32}, head{32, 2};
  Tensor forward(const Tensor& x) const { return head(relu(hidden(x))); }
  void members(Members& m) override { m("hidden", hidden), m("head", head); }
};

int main() {
  auto net = DataParallel(Net{}, {.devices = accelerators()});
  SGD optimizer(net.parameters(), {.lr = 0.5});
  for (int step = 1; step <= 200; ++step) {
    const Tensor points = randn({256, 2});  // which of them lie in the unit circle?
    const Tensor inside = (sum(square(points), {1}) < 1.0).to(DType::i64);
    const Tensor loss = cross_entropy(net(points), inside.to(net.output_device()));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 50 == 0) std::printf("step %d: loss %.3f\n", step, loss.item<double>());
  }
}
