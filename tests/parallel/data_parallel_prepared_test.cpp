// DataParallel over a prepared module: folded where there are no gradients, as ever elsewhere.
#include <atomic>
#include <memory>
#include <thread>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

struct Folds : Module<Folds> {
  Conv2d conv{2, 4, 3, {.padding = 1}}, second{4, 8, 1};
  BatchNorm2d norm{4};
  Linear head{8 * 5 * 5, 3};
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  Tensor forward(const Tensor& x) const {
    ++*calls;
    return head(relu(second(relu(norm(conv(x))))).flatten(1));
  }
  void members(Members& m) override { m("conv", conv), m("norm", norm), m("second", second), m("head", head); }
};

// In f64, with statistics and factors that are not those of the beginning: a folded norm shows in the last bits.
Folds new_folds(std::uint64_t seed) {
  manual_seed(seed);
  Folds net;
  net.norm.running_mean.assign(randn({4}));
  net.norm.running_var.assign(rand({4}) + 0.5);
  net.norm.weight.assign(randn({4}));
  net.norm.bias.assign(randn({4}));
  net.second.bias.assign(rand({8}) + 2);  // the relu leaves something
  net.to(DType::f64);
  net.eval();
  return net;
}
Tensor images(std::uint64_t seed, std::int64_t count = 7) {
  manual_seed(seed);
  return randn({count, 2, 5, 5}).to(DType::f64);
}

template <class Net>
Doubles ordinary(const DataParallel<Net>& net, const Tensor& x) {
  const NoGrad no_gradients;
  return values(net.module()(x.to(net.devices().empty() ? Device::cpu() : net.devices()[0])));
}
template <class Net>
Doubles called(const DataParallel<Net>& net, const Tensor& x) {
  const NoGrad no_gradients;
  return values(net(x));
}

// Folded on every device: nearly the same, and not the same in any piece.
template <class Net>
void check_folded(const DataParallel<Net>& net, const Tensor& x) {
  const Doubles expected = ordinary(net, x), got = called(net, x);
  REQUIRE(largest_difference(got, expected) < 1e-11);
  const std::size_t columns = got.size() / static_cast<std::size_t>(x.size(0));
  const Pieces<Tensor> pieces = scatter_pieces(x, net.devices());
  std::size_t at = 0;
  for (const Tensor& piece : pieces.values) {
    const std::size_t end = at + columns * static_cast<std::size_t>(piece.size(0));
    CHECK_FALSE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(at),
                           got.begin() + static_cast<std::ptrdiff_t>(end),
                           expected.begin() + static_cast<std::ptrdiff_t>(at)));
    at = end;
  }
  CHECK(at == got.size());
}

}  // namespace

TEST_CASE("a prepared DataParallel folds on each of its devices, and anew when weights change at home") {
  for (const int count : {1, 2, 3}) {
    CAPTURE(count);
    DataParallel net(new_folds(1), {.devices = first_devices(count), .prepared = true});
    const Tensor x = images(2);
    check_folded(net, x);
    const std::atomic<int>& calls = *std::as_const(net).module().calls;
    const int before = calls;
    const Doubles first = called(net, x);
    CHECK(calls == before + count);   // once each, now that it is known what folds
    check_folded(net, images(3, 1));  // fewer pieces than devices

    SGD optimizer(net.parameters(), {.lr = 1e-3});
    net.forward(x).sum().backward();
    optimizer.step();
    check_folded(net, x);
    CHECK(called(net, x) != first);

    net.module().norm.running_var.assign(net.module().norm.running_var.tensor() * 2);
    check_folded(net, x);
    net.load_state_dict(DataParallel(new_folds(6), {.devices = first_devices(count)}).state_dict());
    check_folded(net, x);
    Folds other = new_folds(5);
    other.to(net.devices()[0]);
    net.module() = other;
    check_folded(net, x);
  }
}

TEST_CASE("a prepared DataParallel computes as ever with gradients and in training mode") {
  const auto devices = first_devices(2);
  const DataParallel net(new_folds(1), {.devices = devices, .prepared = true}),
      plain(new_folds(1), {.devices = devices});
  const Tensor x = images(2);
  called(net, x);
  const Tensor y = net(x), expected = plain(x);
  CHECK(values(y) == values(expected));
  y.sum().backward();
  expected.sum().backward();
  CHECK(values(net.module().conv.weight.grad()) == values(plain.module().conv.weight.grad()));

  DataParallel trains(net), trains_plainly(plain);
  trains.train(), trains_plainly.train();
  CHECK(called(trains, x) == called(trains_plainly, x));
  trains.eval(), trains_plainly.eval();
  check_folded(trains, x);
  // With a norm that trains by itself nothing is called twice, which it would see.
  trains.module().norm.train(), trains_plainly.module().norm.train();
  CHECK(called(trains, x) == called(trains_plainly, x));
  CHECK(values(trains.module().norm.running_mean.tensor()) ==
        values(trains_plainly.module().norm.running_mean.tensor()));
  const TrainingScope evaluation(false);
  check_folded(trains, x);
}

TEST_CASE("a copy of a prepared DataParallel, and one without devices, are prepared") {
  const DataParallel net(new_folds(1), {.devices = first_devices(2), .prepared = true});
  const DataParallel copy(net);
  check_folded(copy, images(2));
  DataParallel assigned(new_folds(3), {.devices = first_devices(1)});
  assigned = net;
  check_folded(assigned, images(2));

  const DataParallel alone(new_folds(1), {.devices = {}, .prepared = true});
  const Tensor x = images(2);
  const Doubles expected = ordinary(alone, x), got = called(alone, x);
  CHECK(largest_difference(got, expected) < 1e-11);
  CHECK(got != expected);
  const Tensor y = alone(x);
  CHECK(values(y) == expected);
}

TEST_CASE("outputs that are not gathered, and losses, are a prepared DataParallel's too") {
  const DataParallel net(new_folds(1), {.devices = first_devices(2), .prepared = true});
  const Tensor x = images(2);
  const Doubles whole = called(net, x);
  const NoGrad no_gradients;
  Doubles joined;
  for (const Tensor& piece : net.forward_ungathered(x)) {
    const Doubles part = values(piece);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  CHECK(joined == whole);
  double sum = 0;
  for (const double value : whole) sum += value;
  const Tensor loss = net.reduce_with([](const Tensor& y) { return y.sum({1}).mean(); }, x);
  CHECK(std::abs(values(loss)[0] - sum / 7) < 1e-12);
}

TEST_CASE("threads may call a prepared DataParallel at once, and all get the same from the first call on") {
  const Tensor x = images(2);
  for (int trial = 0; trial < 10; ++trial) {
    const DataParallel net(new_folds(1), {.devices = first_devices(2), .prepared = true});
    std::vector<std::thread> threads;
    std::vector<Doubles> first(3);
    for (Doubles& mine : first) threads.emplace_back([&] { mine = called(net, x); });
    for (std::thread& thread : threads) thread.join();
    check_folded(net, x);
    for (const Doubles& mine : first) CHECK(mine == called(net, x));
  }
}

TEST_CASE("a DataParallel is prepared or makes graphs, not both") {
  const auto make = [] { return DataParallel(Folds(), {.devices = first_devices(1), .graphs = 2, .prepared = true}); };
  CHECK_THAT(message_of<InvalidArgument>(make), Contains("2 graphs") && Contains("prepared = true"));
  const auto call = [] { return data_parallel(Folds(), images(1), {.devices = first_devices(1), .prepared = true}); };
  CHECK_THAT(message_of<InvalidArgument>(call), Contains("prepared = true"));
}
