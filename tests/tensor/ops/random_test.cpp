// Random numbers.
#include <set>
#include <thread>

#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

TEST_CASE("random numbers depend on the seed and on the order of operations alone") {
  support::needs_devices(3);
  const auto draw = [](Device device) {
    Doubles all;
    for (const Tensor& x : {rand({5}, {.device = device}), randn({5}, {.device = device}),
                            bernoulli(0.5, {5}, {.device = device}), randint(0, 100, {5}, {.device = device})})
      for (const double v : values(x)) all.push_back(v);
    return all;
  };
  manual_seed(7);
  const Doubles first = draw(Device::cpu()), second = draw(Device::cpu());
  CHECK(first != second);
  manual_seed(7);
  CHECK(draw(device_at(2)) == first);
  CHECK(draw(Device::cpu()) == second);
  manual_seed(8);
  CHECK(draw(Device::cpu()) != first);
  // Another stream of the same seed has other numbers, and a thread begins at seed 0.
  manual_seed(7);
  thread_context().random_stream = 1;
  CHECK(draw(Device::cpu()) != first);
  manual_seed(0);
  const Doubles from_zero = draw(Device::cpu());
  Doubles elsewhere;
  std::thread([&] { elsewhere = draw(Device::cpu()); }).join();
  CHECK(elsewhere == from_zero);
  // No operation, stream or seed repeats another: a counter is not mistaken for a stream.
  std::set<std::uint64_t> streams;
  for (std::uint64_t stream = 0; stream < 50; ++stream) {
    manual_seed(1);
    thread_context().random_stream = stream;
    for (int i = 0; i < 50; ++i) streams.insert(detail::next_random().stream);
  }
  CHECK(streams.size() == 2500);
  manual_seed(0);
}

TEST_CASE("random numbers have their distributions") {
  manual_seed(3);
  constexpr std::int64_t kCount = 100'000;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor u = rand({kCount}, {.dtype = dtype});
    CHECK(min(u).item<double>() >= 0);
    CHECK(max(u).item<double>() < 1);
    CHECK(mean(u).item<double>() == Approx(0.5).margin(0.005));
    CHECK(var(u).item<double>() == Approx(1.0 / 12).margin(0.002));
    const Tensor n = randn({kCount}, {.dtype = dtype});
    CHECK(mean(n).item<double>() == Approx(0).margin(0.015));
    CHECK(var(n).item<double>() == Approx(1).margin(0.03));
    CHECK(mean(bernoulli(0.3, {kCount}, {.dtype = dtype})).item<double>() == Approx(0.3).margin(0.008));
  }
  const Tensor k = randint(-2, 3, {kCount});
  CHECK(k.dtype() == DType::i64);
  for (int value = -2; value < 3; ++value)
    CHECK(mean((k == value).to(DType::f32)).item<double>() == Approx(0.2).margin(0.006));
  const Tensor order = randperm(1000);
  CHECK(order.dtype() == DType::i64);
  CHECK(equal(sort(order).values, arange(1000)));
  CHECK_FALSE(equal(order, arange(1000)));
  CHECK(randperm(0).shape() == Shape{0});
  const Tensor weights = from_data({1.0, 0.0, 3.0, 4.0, 2.0}, {5});
  const Tensor drawn = multinomial(weights, 20000, true);
  for (int i = 0; i < 5; ++i)
    CHECK(mean((drawn == i).to(DType::f64)).item<double>() == Approx(weights[i].item<double>() / 10).margin(0.015));
  // Without replacement each class comes once, and the first of a row as often as its weight says.
  const Tensor rows = multinomial(weights.expand({20000, 5}), 4);
  CHECK(rows.shape() == Shape{20000, 4});
  CHECK_FALSE(any(rows == 1).item<bool>());
  CHECK(all(sum(rows, {1}) == 0 + 2 + 3 + 4).item<bool>());
  for (int i = 0; i < 5; ++i)
    CHECK(mean((rows.select(1, 0) == i).to(DType::f64)).item<double>() ==
          Approx(weights[i].item<double>() / 10).margin(0.015));
  CHECK_THROWS_AS(randint(3, 3, {1}), InvalidArgument);
  CHECK_THROWS_AS(bernoulli(-0.1, {1}), InvalidArgument);
  CHECK(rand({0}).count() == 0);
}
