// reduce_with: the loss in the replicas, weighted by the sizes of their pieces.
#include "parallel/support.h"

using namespace parallel_test;

namespace {

Tensor mean_square(const Tensor& output, const Tensor& target) { return mse_loss(output, target); }

}  // namespace

TEST_CASE("an uneven batch gives the loss and the gradient of the whole batch's mean") {
  for (const auto& devices : device_sets()) {
    for (const auto& policy : {ScatterPolicy(), ScatterPolicy::balanced()}) {
      Mlp module;
      const auto net = DataParallel(Mlp{}, {.devices = devices, .policy = policy});
      for (const std::int64_t batch : {7, 1, 10, 2, 9}) {
        const Tensor x = noise({batch, 3}, 4), t = noise({batch, 2}, 5);
        module.zero_grad();
        const Tensor expected = mse_loss(module(x), t);
        expected.backward();
        for (const Parameter& parameter : net.parameters()) parameter.zero_grad();
        const Tensor loss = net.reduce_with(mean_square, x, t);
        CHECK(loss.shape() == Shape{});
        CHECK(loss.device() == devices[0]);
        CHECK(std::abs(loss.item<double>() - expected.item<double>()) < 1e-10);
        loss.backward();
        const auto got = net.parameters(), reference = module.parameters();
        for (std::size_t i = 0; i < got.size(); ++i)
          CHECK(largest_difference(got[i].grad(), reference[i].grad()) < 1e-10);
      }
    }
  }
}

TEST_CASE("the weights are the sizes of the pieces") {
  const auto net = DataParallel(Scale({1}), {.devices = first_devices(3), .output_device = Device::cpu()});
  // Pieces of 3, 3, 1 with losses 1, 2, 30: the mean of all seven is (3 * 1 + 3 * 2 + 30) / 7.
  const Tensor x = tensor({1, 1, 1, 2, 2, 2, 30}, {7, 1});
  const Tensor loss = net.reduce_with([](const Tensor& y) { return y.mean(); }, x);
  CHECK(loss.device() == Device::cpu());
  CHECK(loss.item<double>() == Approx(39.0 / 7));
}

TEST_CASE("several inputs and targets come as tuples; numbers reach every replica") {
  struct Sum : Module<Sum> {
    Parameter weight{tensor({2}, {1})};
    std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) const { return {a * weight.on(a.device()), b}; }
    void members(Members& m) override { m("weight", weight); }
  };
  const auto net = DataParallel(Sum{}, {.devices = first_devices(2)});
  const auto loss = [](const std::pair<Tensor, Tensor>& y, const Tensor& target, double factor) {
    return (y.first + y.second + target).mean() * factor;
  };
  const Tensor result =
      net.reduce_with(loss, std::tuple(counting({3}), counting({3})), std::tuple(counting({3}), 10.0));
  CHECK(result.item<double>() == Approx(4 * 2 * 10));
  result.backward();
  CHECK(values(net.module().weight.grad())[0] == Approx(2 * 10));
}

TEST_CASE("without devices, with one, and from inside a replica") {
  Mlp module;
  const Tensor x = noise({5, 3}, 1), t = noise({5, 2}, 2);
  const double expected = mse_loss(module(x), t).item<double>();
  CHECK(DataParallel(module, {.devices = {}}).reduce_with(mean_square, x, t).item<double>() == Approx(expected));
  const auto one = DataParallel(module, {.devices = devices_at({3})});
  CHECK(one.reduce_with(mean_square, x, t).item<double>() == Approx(expected));
  const auto nested = [&](const Tensor&, const Tensor&) { return one.reduce_with(mean_square, x, t); };
  CHECK_THROWS_AS(one.reduce_with(nested, x, t), ReplicaError);
}

TEST_CASE("targets that give other pieces, and losses that are no scalars, are errors") {
  const auto net = DataParallel(Mlp{}, {.devices = first_devices(4)});
  CHECK(missing(message_of<InvalidArgument>([&] {
                  net.reduce_with(mean_square, noise({8, 3}, 1), noise({2, 2}, 1));
                }),
                {"2 pieces of the targets", "4"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] {
                  net.reduce_with([](const Tensor& y) { return y; }, noise({8, 3}, 1));
                }),
                {"f64[2, 2]", "replica 0"}) == "");
  CHECK(net.reduce_with(mean_square, noise({8, 3}, 1), noise({8, 2}, 1)).rank() == 0);
}

TEST_CASE("it counts in the stats") {
  const auto net = DataParallel(Mlp{}, {.devices = first_devices(2)});
  net.reduce_with(mean_square, noise({8, 3}, 1, device_at(0)), noise({8, 2}, 1, device_at(0)));
  CHECK(net.stats().calls == 1);
  CHECK(net.stats().last.scatter.bytes == (4 * 3 + 4 * 2) * 8);
}
