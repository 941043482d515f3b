// Making tensors, from values and from random numbers.
#include "lockstep/tensor/ops/factory.h"

#include <cmath>
#include <set>
#include <thread>

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;

namespace {
using Doubles = std::vector<double>;
Doubles values(const Tensor& x) { return x.to_vector<double>(); }
}  // namespace

TEST_CASE("tensors filled with a value") {
  CHECK(values(zeros({2, 2})) == Doubles{0, 0, 0, 0});
  CHECK(values(ones({2})) == Doubles{1, 1});
  CHECK(values(full({2}, 2.5)) == Doubles{2.5, 2.5});
  CHECK(values(full({1}, -3, {.dtype = DType::i64})) == Doubles{-3});
  CHECK(full({}, 1).shape() == Shape{});
  CHECK(zeros({0, 3}).count() == 0);
  CHECK(values(eye(2)) == Doubles{1, 0, 0, 1});
  CHECK(eye(0).shape() == Shape{0, 0});
  CHECK(values(eye(3, {.dtype = DType::i32, .device = device_at(1)})) == Doubles{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(empty({3}, {.dtype = DType::f16}).dtype() == DType::f16);
  CHECK(zeros({1}).dtype() == DType::f32);
  CHECK(zeros({1}).device() == Device::cpu());
  {
    const DefaultDType f64(DType::f64);
    CHECK(zeros({1}).dtype() == DType::f64);
    CHECK(randn({1}).dtype() == DType::f64);
    CHECK(tensor(1.5).dtype() == DType::f64);
  }
  const Tensor x = zeros({2}, {.device = device_at(2), .requires_grad = true});
  CHECK(x.requires_grad());
  CHECK(x.is_leaf());
  CHECK(x.device() == device_at(2));
  const Tensor like = ones_like(x, DType::i64);
  CHECK(like.device() == device_at(2));
  CHECK(like.dtype() == DType::i64);
  CHECK_FALSE(like.requires_grad());
  CHECK(values(full_like(x, 3)) == Doubles{3, 3});
  CHECK(zeros_like(x.expand({3, 2})).contiguous_layout());
  CHECK_THROWS_AS(zeros({-1}), InvalidArgument);
  CHECK_THROWS_AS(zeros({std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
  CHECK_THROWS_AS(zeros({std::int64_t{1} << 62}), InvalidArgument);
}

TEST_CASE("ranges") {
  CHECK(values(arange(4)) == Doubles{0, 1, 2, 3});
  CHECK(arange(4).dtype() == DType::i64);
  CHECK(values(arange(2, 7, 2)) == Doubles{2, 4, 6});
  CHECK(values(arange(3, 0, -1)) == Doubles{3, 2, 1});
  CHECK(values(arange(0.0, 1.0, 0.25)) == Doubles{0, 0.25, 0.5, 0.75});
  CHECK(arange(0, 1, 0.5).dtype() == DType::f32);
  CHECK(arange(0).count() == 0);
  CHECK(arange(5, 2).count() == 0);
  CHECK(arange(3, {.dtype = DType::f64, .device = device_at(1)}).dtype() == DType::f64);
  CHECK_THROWS_AS(arange(0, 3, 0), InvalidArgument);
  CHECK_THROWS_AS(arange(0.0, INFINITY), InvalidArgument);
}

TEST_CASE("tensors from values in memory") {
  std::vector<float> source{1, 2, 3, 4};
  for (const Device device : {Device::cpu(), device_at(3)}) {
    Tensor x = from_data(source, {2, 2}, {.device = device});
    source[0] = 9;  // a copy
    CHECK(values(x) == Doubles{1, 2, 3, 4});
    CHECK(x.dtype() == DType::f32);
    source[0] = 1;
  }
  CHECK(from_data(std::span<float>(source), {4}).dtype() == DType::f32);
  CHECK(from_data(std::span<const float>(source).subspan(2), {2}).to_vector<float>() == std::vector<float>{3, 4});
  CHECK(from_data(std::vector<bool>{true, false}, {2}).dtype() == DType::boolean);
  CHECK(from_data(std::vector<std::int32_t>{1}, {1}).dtype() == DType::i32);
  CHECK(from_data({1.5, 2.5}, {2}).dtype() == DType::f32);
  CHECK(from_data({1, 2}, {2}).dtype() == DType::i64);
  CHECK(from_data({true, false}, {2}).to_vector<int>() == std::vector<int>{1, 0});
  CHECK(from_data({1.5, 2.5}, {2}, {.dtype = DType::f64, .requires_grad = true}).requires_grad());
  CHECK(tensor(2.5).item<double>() == 2.5);
  CHECK(tensor(7).dtype() == DType::i64);
  CHECK(tensor(true).dtype() == DType::boolean);
  CHECK(tensor(std::int64_t{1} << 60).item<std::int64_t>() == std::int64_t{1} << 60);
  CHECK_THROWS_WITH(from_data(source, {3}), Contains("[from_data]") && Contains("3 elements") && Contains("got 4"));
}

TEST_CASE("random numbers depend on the seed and on the order of operations alone") {
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

TEST_CASE("initialisers have the bounds and deviations of their formulas") {
  manual_seed(5);
  const Tensor w = empty({64, 32, 3, 3});
  CHECK(init::fans(w).in == 288);
  CHECK(init::fans(w).out == 576);
  const auto bound = [&] { return max(abs(w)).item<double>(); };
  const auto deviation = [&] { return std::sqrt(var(w).item<double>()); };
  const auto check_uniform = [&](double limit) {
    CHECK(bound() <= limit * (1 + 1e-6));
    CHECK(bound() > 0.99 * limit);
    CHECK(deviation() == Approx(limit / std::sqrt(3.0)).epsilon(0.02));
  };
  const std::uint64_t version = w.version();
  init::kaiming_uniform(w);
  CHECK(w.version() > version);
  check_uniform(std::sqrt(2.0) * std::sqrt(3.0 / 288));
  init::kaiming_uniform(w, std::sqrt(5.0), init::FanMode::fan_out);
  check_uniform(std::sqrt(1.0 / 3) * std::sqrt(3.0 / 576));
  init::xavier_uniform(w, 2);
  check_uniform(2 * std::sqrt(6.0 / (288 + 576)));
  init::uniform(w, -0.5, 0.5);
  check_uniform(0.5);
  init::kaiming_normal(w);
  CHECK(deviation() == Approx(std::sqrt(2.0 / 288)).epsilon(0.02));
  init::xavier_normal(w);
  CHECK(deviation() == Approx(std::sqrt(2.0 / (288 + 576))).epsilon(0.02));
  init::normal(w, 3, 0.1);
  CHECK(mean(w).item<double>() == Approx(3).margin(0.01));
  init::constant(w, 4);
  CHECK(bound() == 4);
  const Tensor bias = empty({64});
  init::default_affine(w, bias);
  check_uniform(1 / std::sqrt(288.0));
  CHECK(max(abs(bias)).item<double>() <= 1 / std::sqrt(288.0));
  CHECK_THROWS_AS(init::kaiming_uniform(bias), InvalidArgument);
  // Through a view, and into a leaf: no graph is involved.
  Tensor grid = zeros({3, 4}, {.requires_grad = true});
  init::normal(grid.detach().t());
  CHECK(min(abs(grid.detach())).item<double>() > 0);
  init::constant(grid, 1);
}
