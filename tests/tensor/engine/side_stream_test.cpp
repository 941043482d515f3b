// Training, converting and casting on a stream of one's own, while others use the memory that is given back: what the
// library keeps by itself stays until that stream has read it.
#include <functional>
#include <optional>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

namespace {

double sum_of_squares(const ModuleBase& module) {
  double total = 0;
  for (const Parameter& parameter : module.parameters())
    total += sum(square(parameter.tensor().detach().to(DType::f64))).item<double>();
  return total;
}

// Tensors of the default stream, which take what has been given back there.
void take_memory_like(const ModuleBase& module, Device device) {
  const StreamScope scope(default_stream(device));
  for (const Parameter& parameter : module.parameters())
    for (const DType dtype : {DType::f32, DType::bf16})
      (void)full(parameter.shape(), 1e6, {.dtype = dtype, .device = device}).clone();
}

// Two parameters of which the gradients are one tensor, and one that is read transposed.
struct Shared : Module<Shared> {
  Parameter a{ones({40, 40})}, b{ones({40, 40})}, c{ones({40, 40})};
  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    return matmul(matmul(x, a.on(device) + b.on(device)), c.on(device).t());
  }
  void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
};

}  // namespace

TEST_CASE("a training on a stream of one's own has its gradients, whichever stream made them") {
  const Device device = device_at(1);
  const auto trained = [&](bool aside) {
    manual_seed(2);
    Shared net;
    RNN rnn(8, 16);
    net.to(device), rnn.to(device);
    const Tensor x = (randn({5, 40}) * 0.01).to(device), series = randn({4, 3, 8}).to(device);
    std::vector<Parameter> parameters = net.parameters();
    for (const Parameter& parameter : rnn.parameters()) parameters.push_back(parameter);
    SGD optimizer(parameters, {.lr = 1e-3, .momentum = 0.9});
    const Stream side = aside ? Stream(device) : default_stream(device);
    side.wait_for(default_stream(device));
    {
      const StreamScope scope(side);
      for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        if (aside) take_memory_like(net, device), take_memory_like(rnn, device);
        (sum(square(net(x))) + sum(square(rnn(series).output))).backward();
        optimizer.step();
      }
    }
    default_stream(device).wait_for(side);
    const double total = sum_of_squares(net) + sum_of_squares(rnn);
    synchronize(device);
    return total;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("an optimizer that steps on two streams in turn lets go of its momentums when both have read them") {
  const Device device = device_at(1);
  const auto trained = [&](bool aside) {
    manual_seed(1);
    Linear net(64, 64);
    net.to(device);
    const Tensor x = randn({32, 64}).to(device);
    std::optional<SGD> optimizer(std::in_place, net.parameters(), SgdOptions{.lr = 1e-3, .momentum = 0.9});
    const Stream streams[] = {Stream(device), Stream(device)};
    Stream last = default_stream(device);
    for (int step = 0; step < 5; ++step) {
      const Stream next = streams[aside ? step % 2 : 0];
      next.wait_for(last);
      last = next;
      const StreamScope scope(next);
      optimizer->zero_grad();
      sum(square(net(x))).backward();
      optimizer->step();
    }
    streams[1].wait_for(last);
    const StreamScope scope(streams[1]);
    for (const Parameter& parameter : net.parameters()) parameter.set_grad(ones(parameter.shape(), {.device = device}));
    optimizer->step();
    optimizer.reset();
    {
      const StreamScope first(streams[0]);
      for (int taker = 0; taker < 6; ++taker) (void)full({64, 64}, 1e6, {.device = device});
    }
    const double total = sum_of_squares(net);
    net.zero_grad();
    for (const Stream& stream : {streams[0], default_stream(device)}) stream.wait_for(streams[1]);
    synchronize(device);
    return total;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("a module that is converted on a stream of one's own has its weights") {
  const Device device = device_at(1);
  const std::function<void(Conv2d&)> ways[] = {[](Conv2d& net) { net.to(DType::f64); },
                                               [](Conv2d& net) { net.to(MemoryFormat::channels_last); },
                                               [](Conv2d& net) { net.to(device_at(2)); }};
  for (const auto& way : ways) {
    manual_seed(1);
    Conv2d net(32, 32, 3);
    net.to(device);
    const Tensor x = randn({1, 32, 5, 5}).to(device);
    sum(square(net(x))).backward();
    const double expected = sum_of_squares(net);
    const double of_gradient = sum(square(net.weight.grad().to(DType::f64))).item<double>();
    const Stream side(device);
    side.wait_for(default_stream(device));
    {
      const StreamScope scope(side);
      Tensor before = ones({64, 64}, {.device = device});
      for (int i = 0; i < 50; ++i) before = before * 1.0;
      way(net);
    }
    for (int taker = 0; taker < 4; ++taker) (void)full({32, 32, 3, 3}, 1e6, {.device = device});
    for (int taker = 0; taker < 2; ++taker) (void)full({32}, 1e6, {.device = device});
    default_stream(device).wait_for(side);
    CHECK(std::abs(sum_of_squares(net) - expected) < 1e-6 * expected);
    const double moved = sum(square(net.weight.grad().to(DType::f64))).item<double>();
    CHECK(std::abs(moved - of_gradient) < 1e-6 * of_gradient);
    synchronize(device);
    synchronize(net.weight.device());
  }
}

TEST_CASE("a layer that two streams use in one autocast scope is cast on each of them") {
  const Device device = device_at(1);
  manual_seed(3);
  Linear layer(64, 64);
  layer.to(device);
  const Tensor x = randn({16, 64}).to(device);
  const NoGrad no_grad;
  for (const bool side_first : {true, false}) {
    CAPTURE(side_first);
    const Stream main = current_stream(device), side(device);
    Tensor here, there;
    {
      const Autocast scope(DType::bf16);
      side.wait_for(main);
      const auto aside = [&] {
        const StreamScope on_side(side);
        there = layer(x);
      };
      if (side_first) aside();
      here = layer(x);
      if (!side_first) aside();
    }
    take_memory_like(layer, device);
    main.wait_for(side);
    there.storage()->record_use(main);
    const Autocast scope(DType::bf16);
    const Tensor expected = layer(x);
    CHECK(equal(here, expected));
    CHECK(equal(there, expected));
    synchronize(device);
  }
}
