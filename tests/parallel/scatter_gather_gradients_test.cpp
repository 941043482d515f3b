// scatter and gather in a graph.
#include "parallel/support.h"

using namespace parallel_test;

namespace {

// Every piece times a number of its own, joined again: y = x * factors, made on several devices.
Tensor through(const Tensor& x, const std::vector<Device>& devices, Device target, std::int64_t dim = 0) {
  std::vector<Tensor> pieces = scatter(x, devices, dim);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i] * pieces[i] * static_cast<double>(i + 2);
  return gather(pieces, target, dim);
}
// The same on one device.
Tensor directly(const Tensor& x, std::size_t device_count, std::int64_t dim = 0) {
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t share : ScatterPolicy().shares(x.size(dim), static_cast<int>(device_count))) {
    if (share == 0) continue;
    const Tensor part = x.narrow(dim, start, share);
    parts.push_back(part * part * static_cast<double>(parts.size() + 2));
    start += share;
  }
  return cat(parts, dim);
}
Tensor wanting_gradient(const Tensor& x) {
  Tensor leaf = x.clone();
  return leaf.set_requires_grad();
}

}  // namespace

TEST_CASE("the gradient of the pieces is gathered back to the source's device") {
  for (const auto& devices : device_sets()) {
    for (const std::int64_t dim : {0, 1}) {
      for (const Device source : {devices.back(), Device::cpu()}) {
        const Tensor x = wanting_gradient(counting({7, 5}, source)), y = wanting_gradient(counting({7, 5}));
        const Tensor weights = counting({7, 5}, devices[0], 3);
        (through(x, devices, devices[0], dim) * weights).sum().backward();
        (directly(y, devices.size(), dim) * weights.to(Device::cpu())).sum().backward();
        CHECK(x.grad().device() == source);
        CHECK(values(x.grad()) == values(y.grad()));  // integers: exact
      }
    }
  }
}

TEST_CASE("a piece nobody uses has a gradient of zeros") {
  support::needs_devices(3);
  const Tensor x = wanting_gradient(counting({5}, device_at(1)));
  const std::vector<Tensor> pieces = scatter(x, first_devices(3));
  (pieces[1] * 3).sum().backward();
  CHECK(values(x.grad()) == Doubles{0, 0, 3, 3, 0});
}

TEST_CASE("gather gives each output its part of the gradient, on its device") {
  const Tensor a = wanting_gradient(counting({2, 2}, device_at(2))), b = counting({1, 2}, device_at(0)),
               c = wanting_gradient(counting({3, 2}, device_at(1)));
  const Tensor joined = gather(std::vector{a, b, c}, device_at(0));
  CHECK(joined.requires_grad());
  (joined * counting({6, 2}, device_at(0))).sum().backward();
  CHECK(a.grad().device() == device_at(2));
  CHECK(values(a.grad()) == Doubles{1, 2, 3, 4});
  CHECK_FALSE(b.grad().defined());
  CHECK(values(c.grad()) == Doubles{7, 8, 9, 10, 11, 12});
}

TEST_CASE("gathered scalars give each replica a scalar gradient") {
  support::needs_devices(2);
  const Tensor a = wanting_gradient(full({}, 2, {.dtype = DType::f64, .device = device_at(0)})),
               b = wanting_gradient(full({}, 3, {.dtype = DType::f64, .device = device_at(1)}));
  (gather(std::vector{a, b}, device_at(0)) * counting({2}, device_at(0), 5)).sum().backward();
  CHECK(a.grad().shape() == Shape{});
  CHECK(a.grad().item<double>() == 5);
  CHECK(b.grad().item<double>() == 6);
  CHECK(b.grad().device() == device_at(1));
}

TEST_CASE("both are differentiable again") {
  for (const auto& devices : device_sets()) {
    const auto penalty = [](const Tensor& x, const Tensor& y) {
      const Tensor g = grad(y.sum(), {x}, {.create_graph = true})[0];
      return (g * g * g).sum();
    };
    const Tensor x = wanting_gradient(counting({7}, devices[0])), y = wanting_gradient(counting({7}));
    const Tensor first = penalty(x, through(x, devices, devices.back())),
                 other = penalty(y, directly(y, devices.size()));
    CHECK(first.item<double>() == other.item<double>());
    const Tensor gx = grad(first, {x}, {.create_graph = true})[0], gy = grad(other, {y}, {.create_graph = true})[0];
    CHECK(values(gx) == values(gy));
    gx.sum().backward();  // three times
    gy.sum().backward();
    CHECK(values(x.grad()) == values(y.grad()));
  }
}

TEST_CASE("without grad mode there is no graph") {
  support::needs_devices(2);
  const Tensor x = wanting_gradient(counting({4}, device_at(0)));
  const NoGrad off;
  const std::vector<Tensor> pieces = scatter(x, first_devices(2));
  CHECK_FALSE(pieces[0].requires_grad());
  CHECK_FALSE(pieces[1].requires_grad());
  CHECK_FALSE(gather(pieces, device_at(0)).requires_grad());
}

TEST_CASE("the pieces of a tensor in a graph must not be written in place") {
  support::needs_devices(2);
  const Tensor x = wanting_gradient(counting({4}, device_at(0)));
  std::vector<Tensor> pieces = scatter(x, first_devices(2));
  CHECK_THROWS_AS(pieces[0].mul_(2), InvalidArgument);  // a view of x
  CHECK(values(x) == Doubles{1, 2, 3, 4});
}

TEST_CASE("an unrelated use of the gathered gradient is not disturbed by its parts") {
  support::needs_devices(2);
  // Both x and y get the gradient of z; the parts of x's are views of it.
  const Tensor a = wanting_gradient(counting({2}, device_at(0))), b = wanting_gradient(counting({2}, device_at(1))),
               y = wanting_gradient(counting({4}, device_at(0)));
  const Tensor x = gather(std::vector{a * 1, b * 1}, device_at(0));
  const Tensor weights = counting({4}, device_at(0), 5);
  ((x + y) * weights).sum().backward();
  ((x.detach() + y) * weights).sum().backward();
  CHECK(values(y.grad()) == Doubles{10, 12, 14, 16});
  CHECK(values(a.grad()) == Doubles{5, 6});
  CHECK(values(b.grad()) == Doubles{7, 8});
}
